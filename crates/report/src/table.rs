//! A table, made once from a result, and shown as text, as Markdown, as CSV and, by a template, on a page. Of a
//! comparison, CSV and the page's table of all numbers are made otherwise.

use comfy_table::{CellAlignment, presets};
use kl_stats::stats::Estimate;
use serde::{Serialize, Serializer};

use super::layout::{View, wrapped};
use super::names::Names;
use super::number::{UNDEFINED, ends, or_undefined, printable};

/// The outputs that show a column.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shown {
    #[default]
    Everywhere,
    /// In text, where lines are short, and on pages.
    InText,
    InMarkdown,
}

/// A column, which pages show by a template.
#[derive(Serialize, Debug, Default)]
struct Column {
    /// Its title, which may have two lines.
    title: String,
    /// The unit of its numbers: text has it in the title, Markdown after each number.
    unit: &'static str,
    is_right: bool,
    /// True if it has the intervals of the column before, beside whose values Markdown shows them.
    is_interval: bool,
    shown: Shown,
    cells: Vec<String>,
    /// The numbers of the cells, by which a page sorts; empty for a column of words.
    values: Vec<Option<f64>>,
}

/// A table with a row for each of some things.
#[derive(Serialize, Debug)]
pub struct Table<R> {
    #[serde(skip)]
    rows: Vec<R>,
    #[serde(serialize_with = "columns_of_page")]
    columns: Vec<Column>,
    /// The titles of rows in text, each before the row with this index.
    groups: Vec<(usize, String)>,
    title: String,
    /// The line that counts the rows left out; empty if all are there.
    more: String,
    notes: Vec<String>,
    gap: u16,
}

/// The columns that a page shows.
fn columns_of_page<S: Serializer>(columns: &[Column], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(shown_in(columns, Shown::InText))
}

fn shown_in(columns: &[Column], output: Shown) -> impl Iterator<Item = &Column> {
    let is_shown = move |of: &&Column| of.shown == Shown::Everywhere || of.shown == output;
    columns.iter().filter(is_shown)
}

impl<R> Table<R> {
    /// A table of these rows, without columns yet.
    pub fn new(title: impl Into<String>, rows: impl IntoIterator<Item = R>) -> Self {
        Self {
            rows: rows.into_iter().collect(),
            columns: Vec::new(),
            groups: Vec::new(),
            title: title.into(),
            more: String::new(),
            notes: Vec::new(),
            gap: 1,
        }
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// Adds a column of words.
    pub fn left(mut self, title: impl Into<String>, cell: impl FnMut(&R) -> String) -> Self {
        self.columns.push(Column {
            title: title.into(),
            cells: self.rows.iter().map(cell).collect(),
            ..Column::default()
        });
        self
    }

    /// Adds a column of numbers as text.
    pub fn right(self, title: impl Into<String>, cell: impl FnMut(&R) -> String) -> Self {
        self.left(title, cell).last(|column| column.is_right = true)
    }

    /// Adds a column of numbers that may be missing.
    pub fn number(
        self,
        title: impl Into<String>,
        value: impl Fn(&R) -> Option<f64>,
        show: impl Fn(f64) -> String,
    ) -> Self {
        let values: Vec<Option<f64>> = self.rows.iter().map(&value).collect();
        let table = self.right(title, |row| or_undefined(value(row), &show));
        table.last(|column| column.values.clone_from(&values))
    }

    /// Adds a column of numbers that may be missing, and one of their intervals.
    pub fn estimate(
        self,
        [title, interval]: [&str; 2],
        of: impl Fn(&R) -> Option<Estimate>,
        show: fn(f64) -> String,
    ) -> Self {
        let table = self.number(title, |row| Some(of(row)?.value), show);
        table.interval(interval, of, show)
    }

    /// Adds a column of the intervals of the column before.
    pub fn interval(
        self,
        title: impl Into<String>,
        of: impl Fn(&R) -> Option<Estimate>,
        show: impl Fn(f64) -> String,
    ) -> Self {
        let interval = |of: Estimate| ends(of.lo, of.hi, &show);
        let cell = |row: &R| of(row).map(interval).unwrap_or_default();
        let table = self.right(title, cell);
        table.last(|column| column.is_interval = true)
    }

    /// Changes the column that was added last.
    fn last(mut self, change: impl Fn(&mut Column)) -> Self {
        self.columns.last_mut().into_iter().for_each(change);
        self
    }

    /// Shows the last column in text and on pages only.
    pub fn in_text(self) -> Self {
        self.last(|column| column.shown = Shown::InText)
    }

    /// Shows the last column in Markdown only, with the one before if it has that one's intervals.
    pub fn in_markdown(mut self) -> Self {
        let first = self.columns.len() - self.n_last();
        let columns = self.columns.iter_mut().skip(first);
        columns.for_each(|column| column.shown = Shown::InMarkdown);
        self
    }

    /// Keeps the last column only if `shown` is set, and so the one before if it has that one's intervals.
    pub fn shown_if(mut self, shown: bool) -> Self {
        if !shown {
            self.columns.truncate(self.columns.len() - self.n_last());
        }
        self
    }

    /// The columns of what was added last: one, or also that of its intervals.
    fn n_last(&self) -> usize {
        let last = self.columns.last();
        last.map_or(0, |column| 1 + usize::from(column.is_interval))
    }

    /// Gives the numbers of the last column a unit.
    pub fn unit(self, unit: &'static str) -> Self {
        self.last(|column| column.unit = unit)
    }

    /// Puts a title before the row with this index, in text.
    pub fn group(mut self, index: usize, title: String) -> Self {
        self.groups.push((index, title));
        self
    }

    /// Puts more space between two columns of text.
    pub fn gap(mut self, gap: u16) -> Self {
        self.gap = gap;
        self
    }

    /// Explains the table below it.
    pub fn notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }

    /// Counts below the text the rows that were left out.
    pub fn more(mut self, more: String) -> Self {
        self.more = more;
        self
    }

    /// Leaves out rows of a long table that the view does not show.
    pub fn first(mut self, view: View) -> Self {
        let (first, more) = view.first(&self.rows);
        let n = first.len();
        self.rows.truncate(n);
        for column in &mut self.columns {
            column.cells.truncate(n);
            column.values.truncate(n);
        }
        self.more(more)
    }

    /// The rows as text below the titles of the columns, without the table's own title and its notes.
    pub fn rows_text(&self) -> String {
        let columns = || shown_in(&self.columns, Shown::InText);
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(
            columns().map(|of| format!("{} {}", of.title, of.unit).trim_end().to_owned()),
        );
        for i in 0..=self.rows.len() {
            let titles = self.groups.iter().filter(|(index, _)| *index == i);
            table.add_rows(titles.map(|(_, title)| [title]));
            let cells: Vec<&String> = columns().filter_map(|of| of.cells.get(i)).collect();
            if i < self.rows.len() {
                table.add_row(cells);
            }
        }
        for (column, of) in table.column_iter_mut().zip(columns()) {
            column.set_padding((0, self.gap));
            if of.is_right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
        lines.collect()
    }

    /// The table as text: after its title, and before its notes; empty without rows.
    pub fn text(&self) -> String {
        self.around(&self.rows_text())
    }

    fn around(&self, rows: &str) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let notes: String = self.notes.iter().map(|note| wrapped(note)).collect();
        format!("\n{}{rows}{}{notes}", wrapped(&self.title), self.more)
    }

    /// The table that `make` makes with a function that shortens names, as text: with the longest names
    /// whose lines fit.
    pub fn fitted(names: &Names, make: impl Fn(&dyn Fn(&str) -> String) -> Self) -> String {
        let rows = names.fitted(|name| make(name).rows_text());
        make(&names.in_sentences()).around(&rows)
    }

    /// The table as Markdown, after its title, if it has one, and before its notes; empty without rows.
    /// All is escaped, as names may come from a file.
    pub fn markdown(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut columns: Vec<(&Column, Vec<String>)> = Vec::new();
        for of in shown_in(&self.columns, Shown::InMarkdown) {
            let cells = of.cells.iter().map(|cell| match cell.trim() {
                cell if of.unit.is_empty() || cell == UNDEFINED => cell.to_owned(),
                cell => format!("{cell} {}", of.unit),
            });
            match columns.last_mut() {
                // Intervals are in the cells of their values.
                Some((_, values)) if of.is_interval => {
                    let pairs = values.iter().zip(cells);
                    let both = pairs.map(|(value, ends)| format!("{value} {ends}"));
                    *values = both.collect();
                }
                _ => columns.push((of, cells.collect())),
            }
        }
        let line = |cell: &dyn Fn(&Column, &[String]) -> String| {
            let cells = columns.iter().map(|(of, cells)| cell(of, cells));
            format!("| {} |\n", Vec::from_iter(cells).join(" | "))
        };
        let mut text = match self.title.as_str() {
            "" => String::new(),
            title => format!("\n{}:\n\n", escaped(title)),
        };
        text += &line(&|of, _| escaped(of.title.replace('\n', " ").trim()));
        text += &line(&|of, _| (if of.is_right { "---:" } else { "---" }).to_owned());
        for i in 0..self.rows.len() {
            text += &line(&|_, cells| cells.get(i).map_or("".to_owned(), |of| escaped(of.trim())));
        }
        for note in &self.notes {
            // A plus at the start of a line would begin a list.
            let plus = if note.starts_with('+') { "\\" } else { "" };
            text.push_str(&format!("\n{plus}{}\n", escaped(note)));
        }
        text
    }

    /// The table as CSV (RFC 4180, but with line feeds alone), after a line with the titles of the columns.
    pub fn csv(&self) -> String {
        let line = |cells: Vec<String>| cells.join(",") + "\n";
        let mut csv = line(self.columns.iter().map(|of| csv_text(&of.title)).collect());
        for i in 0..self.rows.len() {
            let cells = self.columns.iter().filter_map(|of| {
                let cell = of.cells.get(i)?;
                Some(if of.is_right {
                    cell.clone()
                } else {
                    csv_text(cell)
                })
            });
            csv += &line(cells.collect());
        }
        csv
    }
}

/// A text that Markdown shows as it is.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in printable(text).chars() {
        if "\\`*_[]<>|#&~$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// A text, in quotes where it needs them. A spreadsheet runs a cell that starts like a formula as
/// one, in quotes or not: an apostrophe before it makes it text (OWASP, "CSV Injection"). A terminal obeys
/// control characters: they become U+FFFD.
pub fn csv_text(value: &str) -> String {
    let value = printable(value);
    let is_formula = value.starts_with(['=', '+', '-', '@']);
    let apostrophe = if is_formula { "'" } else { "" };
    if value.contains(['"', ',']) {
        format!("\"{apostrophe}{}\"", value.replace('"', "\"\""))
    } else {
        format!("{apostrophe}{value}")
    }
}
