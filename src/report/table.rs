//! A table, made once from a result, and shown as text, as Markdown and as CSV. Pages show their tables by
//! templates, from the same result.

use comfy_table::{CellAlignment, presets};

use super::layout::{View, wrapped};
use super::names::Names;
use super::number::{UNDEFINED, ends, or_undefined, printable};
use crate::stats::Estimate;

/// The outputs that show a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    Everywhere,
    /// Where lines are short.
    InText,
    InMarkdown,
    Nowhere,
}

#[derive(Debug)]
struct Column {
    /// Its title, which may have two lines.
    title: String,
    /// Its title in Markdown, if that is another.
    markdown_title: Option<&'static str>,
    /// The unit of its numbers: text has it in the title, Markdown after each number.
    unit: &'static str,
    is_right: bool,
    shown: Shown,
    cells: Vec<String>,
}

/// A table with a row for each of some things.
#[derive(Debug)]
pub struct Table<R> {
    rows: Vec<R>,
    columns: Vec<Column>,
    /// The titles of rows in text, each before the row with this index.
    groups: Vec<(usize, String)>,
    title: String,
    /// The line that counts the rows left out; empty if all are there.
    more: String,
    notes: Vec<String>,
    gap: u16,
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
    pub fn left(self, title: impl Into<String>, cell: impl FnMut(&R) -> String) -> Self {
        self.column(title, false, cell)
    }

    /// Adds a column of numbers.
    pub fn right(self, title: impl Into<String>, cell: impl FnMut(&R) -> String) -> Self {
        self.column(title, true, cell)
    }

    /// Adds a column of numbers that may be missing.
    pub fn number(
        self,
        title: impl Into<String>,
        value: impl Fn(&R) -> Option<f64>,
        show: impl Fn(f64) -> String,
    ) -> Self {
        self.right(title, |row| or_undefined(value(row), &show))
    }

    /// Adds a column of intervals, empty where there is none.
    pub fn interval(
        self,
        title: impl Into<String>,
        of: impl Fn(&R) -> Option<Estimate>,
        show: impl Fn(f64) -> String,
    ) -> Self {
        self.right(title, |row| {
            of(row).map_or_else(String::new, |of| ends(of.lo, of.hi, &show))
        })
    }

    fn column(
        mut self,
        title: impl Into<String>,
        is_right: bool,
        cell: impl FnMut(&R) -> String,
    ) -> Self {
        self.columns.push(Column {
            title: title.into(),
            markdown_title: None,
            unit: "",
            is_right,
            shown: Shown::Everywhere,
            cells: self.rows.iter().map(cell).collect(),
        });
        self
    }

    /// Changes the column that was added last.
    fn last(mut self, change: impl Fn(&mut Column)) -> Self {
        self.columns.last_mut().into_iter().for_each(change);
        self
    }

    /// Shows the last column in some outputs only.
    pub fn shown(self, shown: Shown) -> Self {
        self.last(|column| column.shown = shown)
    }

    /// Shows the last column only if `shown` is set.
    pub fn shown_if(self, shown: bool) -> Self {
        self.last(|column| {
            if !shown {
                column.shown = Shown::Nowhere;
            }
        })
    }

    /// Gives the last column another title in Markdown.
    pub fn in_markdown(self, title: &'static str) -> Self {
        self.last(|column| column.markdown_title = Some(title))
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
        }
        self.more(more)
    }

    /// The rows as text below the titles of the columns, without the table's own title and its notes.
    pub fn rows_text(&self) -> String {
        let columns = || {
            let all = self.columns.iter();
            all.filter(|of| matches!(of.shown, Shown::Everywhere | Shown::InText))
        };
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(columns().map(|of| match of.unit {
            "" => of.title.clone(),
            unit => format!("{} {unit}", of.title),
        }));
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
        let columns = || {
            let all = self.columns.iter();
            all.filter(|of| matches!(of.shown, Shown::Everywhere | Shown::InMarkdown))
        };
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let title = |of: &Column| {
            let title = of.markdown_title.unwrap_or(&of.title);
            escaped(title.replace('\n', " ").trim())
        };
        let rule = |of: &Column| (if of.is_right { "---:" } else { "---" }).to_owned();
        let mut text = match self.title.as_str() {
            "" => String::new(),
            title => format!("\n{}:\n\n", escaped(title)),
        };
        text.push_str(&line(columns().map(title).collect()));
        text.push_str(&line(columns().map(rule).collect()));
        for i in 0..self.rows.len() {
            let cell = |of: &Column| {
                let cell = of.cells.get(i).map_or("", |cell| cell.trim());
                match of.unit {
                    unit if !unit.is_empty() && cell != UNDEFINED => format!("{cell} {unit}"),
                    _ => escaped(cell),
                }
            };
            text.push_str(&line(columns().map(cell).collect()));
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
        let titles = self.columns.iter().map(|of| csv_text(&of.title));
        let mut csv = line(titles.collect());
        for i in 0..self.rows.len() {
            let cells = self.columns.iter().filter_map(|of| {
                let cell = of.cells.get(i)?;
                Some(if of.is_right {
                    cell.clone()
                } else {
                    csv_text(cell)
                })
            });
            csv.push_str(&line(cells.collect()));
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
/// one, in quotes or not: an apostrophe before it makes it text (OWASP, "CSV Injection").
pub fn csv_text(value: &str) -> String {
    let is_formula = value.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let apostrophe = if is_formula { "'" } else { "" };
    if value.contains(['"', ',', '\n', '\r']) {
        format!("\"{apostrophe}{}\"", value.replace('"', "\"\""))
    } else {
        format!("{apostrophe}{value}")
    }
}
