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
    more_line: String,
    notes: Vec<String>,
    gap: u16,
}

/// The columns that a page shows.
fn columns_of_page<S: Serializer>(columns: &[Column], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(shown_in(columns, Shown::InText))
}

fn shown_in(columns: &[Column], output: Shown) -> impl Iterator<Item = &Column> {
    columns
        .iter()
        .filter(move |column| column.shown == Shown::Everywhere || column.shown == output)
}

impl<R> Table<R> {
    /// A table of these rows, without columns yet.
    pub fn new(title: impl Into<String>, rows: impl IntoIterator<Item = R>) -> Self {
        Self {
            rows: rows.into_iter().collect(),
            columns: Vec::new(),
            groups: Vec::new(),
            title: title.into(),
            more_line: String::new(),
            notes: Vec::new(),
            gap: 1,
        }
    }

    /// The rows of which the table is made.
    pub fn rows(&self) -> &[R] {
        &self.rows
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
        self.left(title, cell)
            .change_last(|column| column.is_right = true)
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
        table.change_last(|column| column.values.clone_from(&values))
    }

    /// Adds a column of numbers that may be missing, and one of their intervals.
    pub fn estimate(
        self,
        [title, interval_title]: [&str; 2],
        estimate: impl Fn(&R) -> Option<Estimate>,
        show: fn(f64) -> String,
    ) -> Self {
        let table = self.number(title, |row| Some(estimate(row)?.value), show);
        table.interval(interval_title, estimate, show)
    }

    /// Adds a column of the intervals of the column before.
    pub fn interval(
        self,
        title: impl Into<String>,
        estimate: impl Fn(&R) -> Option<Estimate>,
        show: impl Fn(f64) -> String,
    ) -> Self {
        let table = self.right(title, |row| {
            estimate(row)
                .map(|estimate| ends(estimate.lo, estimate.hi, &show))
                .unwrap_or_default()
        });
        table.change_last(|column| column.is_interval = true)
    }

    /// Changes the column that was added last.
    fn change_last(mut self, change: impl Fn(&mut Column)) -> Self {
        self.columns.last_mut().into_iter().for_each(change);
        self
    }

    /// Shows the last column in text and on pages only.
    pub fn in_text(self) -> Self {
        self.change_last(|column| column.shown = Shown::InText)
    }

    /// Shows the last column in Markdown only, with the one before if it has that one's intervals.
    pub fn in_markdown(mut self) -> Self {
        let first = self.columns.len() - self.n_last_columns();
        let columns = self.columns.iter_mut().skip(first);
        columns.for_each(|column| column.shown = Shown::InMarkdown);
        self
    }

    /// Shows the last column in Markdown only if `condition` is set: there lines may be longer.
    pub fn in_markdown_if(self, condition: bool) -> Self {
        if condition { self.in_markdown() } else { self }
    }

    /// Keeps the last column only if `shown` is set, and so the one before if it has that one's intervals.
    pub fn shown_if(mut self, shown: bool) -> Self {
        if !shown {
            self.columns
                .truncate(self.columns.len() - self.n_last_columns());
        }
        self
    }

    /// The number of columns that were added last: one, or two if the last has the intervals of the one before.
    fn n_last_columns(&self) -> usize {
        self.columns
            .last()
            .map_or(0, |column| 1 + usize::from(column.is_interval))
    }

    /// Gives the numbers of the last column a unit.
    pub fn unit(self, unit: &'static str) -> Self {
        self.change_last(|column| column.unit = unit)
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
    pub fn more_line(mut self, line: String) -> Self {
        self.more_line = line;
        self
    }

    /// Leaves out rows of a long table that the view does not show.
    pub fn first_rows(mut self, view: View) -> Self {
        let (first_rows, more_line) = view.first_rows(&self.rows);
        let n = first_rows.len();
        self.rows.truncate(n);
        for column in &mut self.columns {
            column.cells.truncate(n);
            column.values.truncate(n);
        }
        self.more_line(more_line)
    }

    /// The rows as text below the titles of the columns, without the table's own title and its notes.
    pub fn rows_text(&self) -> String {
        let columns = || shown_in(&self.columns, Shown::InText);
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(columns().map(|column| {
            let title = format!("{} {}", column.title, column.unit);
            title.trim_end().to_owned()
        }));
        for i in 0..=self.rows.len() {
            let titles = self.groups.iter().filter(|(index, _)| *index == i);
            table.add_rows(titles.map(|(_, title)| [title]));
            let cells: Vec<&String> = columns().filter_map(|column| column.cells.get(i)).collect();
            if i < self.rows.len() {
                table.add_row(cells);
            }
        }
        for (text_column, column) in table.column_iter_mut().zip(columns()) {
            text_column.set_padding((0, self.gap));
            if column.is_right {
                text_column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
            .lines()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect()
    }

    /// The table as text: after its title, and before its notes; empty without rows.
    pub fn text(&self) -> String {
        self.with_title_and_notes(&self.rows_text())
    }

    fn with_title_and_notes(&self, rows: &str) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let notes: String = self.notes.iter().map(|note| wrapped(note)).collect();
        format!("\n{}{rows}{}{notes}", wrapped(&self.title), self.more_line)
    }

    /// The table that `make` makes with a function that shortens names, as text: with the longest names
    /// whose lines fit.
    pub fn fitted(names: &Names, make: impl Fn(&dyn Fn(&str) -> String) -> Self) -> String {
        let rows = names.fitted(|name| make(name).rows_text());
        make(&names.in_sentences()).with_title_and_notes(&rows)
    }

    /// The table as Markdown, after its title, if it has one, and before its notes; empty without rows.
    /// All is escaped, as names may come from a file.
    pub fn markdown(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut columns: Vec<(&Column, Vec<String>)> = Vec::new();
        for column in shown_in(&self.columns, Shown::InMarkdown) {
            let cells = column.cells.iter().map(|cell| match cell.trim() {
                cell if column.unit.is_empty() || cell == UNDEFINED => cell.to_owned(),
                cell => format!("{cell} {}", column.unit),
            });
            match columns.last_mut() {
                // Intervals are in the cells of their values.
                Some((_, values)) if column.is_interval => {
                    for (value, interval) in values.iter_mut().zip(cells) {
                        *value = format!("{value} {interval}");
                    }
                }
                _ => columns.push((column, cells.collect())),
            }
        }
        let line = |cell: &dyn Fn(&Column, &[String]) -> String| {
            let cells = columns.iter().map(|(column, cells)| cell(column, cells));
            format!("| {} |\n", Vec::from_iter(cells).join(" | "))
        };
        let mut text = match self.title.as_str() {
            "" => String::new(),
            title => format!("\n{}:\n\n", escaped(title)),
        };
        text += &line(&|column, _| escaped(column.title.replace('\n', " ").trim()));
        text += &line(&|column, _| (if column.is_right { "---:" } else { "---" }).to_owned());
        for i in 0..self.rows.len() {
            text += &line(&|_, cells| {
                let cell = cells.get(i);
                cell.map_or_else(String::new, |cell| escaped(cell.trim()))
            });
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
        let titles = self.columns.iter().map(|column| csv_text(&column.title));
        let mut csv = line(titles.collect());
        for i in 0..self.rows.len() {
            let cells = self.columns.iter().filter_map(|column| {
                let cell = column.cells.get(i)?;
                Some(if column.is_right {
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
