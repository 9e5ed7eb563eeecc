//! The pick as text: the sentences, and the table of all quants.

use super::{LeftOut, Pick, PickedModel};
use crate::comparison::ShownName;
use crate::layout::{View, hanging, wrapped};
use crate::number::{SizeUnit, bytes, count_of, fixed, printable, short_kld};
use crate::result::ModelResult;
use crate::table::Table;
use crate::text::done_of_all;

/// The marks of a row, and what each says.
const PICK: &str = "★";
const FRONT: &str = "P";
const NEAR: &str = "≈";
const TOO_LARGE: &str = "!";
const STOPPED: &str = "×";

/// A row of the table.
pub(crate) struct PickRow<'p> {
    result: &'p ModelResult,
    marks: String,
}

impl Pick {
    /// The sentences of the result: the pick and why, or why there is none; and what is not decided.
    pub fn sentences(&self) -> Vec<String> {
        let pick = self.pick.as_ref().map(|pick| pick.reason.clone());
        let first = pick.or_else(|| self.no_pick.clone());
        first.into_iter().chain(self.undecided.clone()).collect()
    }

    /// Everything that a terminal shows.
    pub fn text(&self, view: View) -> String {
        let names = &self.names(view.width);
        let mut text: String = self.sentences().iter().map(|line| wrapped(line)).collect();
        text.push('\n');
        text += &self.comparison.heading(names);
        text.push('\n');
        text += &names.fitted(|name| self.table(name).rows_text());
        text.extend(self.legend().iter().map(|line| wrapped(line)));
        for (title, files) in self.unmeasured() {
            text += &format!("\n{title}\n");
            let line = |of: &LeftOut| format!("{}: {}", printable(&of.file), printable(&of.why));
            text.extend(files.iter().map(|of| hanging("  ", 4, &line(of))));
        }
        text
    }

    /// The quants that were not measured, or not to the end, and why, under their titles.
    pub(crate) fn unmeasured(&self) -> Vec<(&'static str, Vec<LeftOut>)> {
        let unit = self.comparison.reference.unit();
        // Of one reason, they share a line.
        let mut stopped: Vec<LeftOut> = Vec::new();
        for of in &self.stopped {
            let label = &of.result.label;
            let done = done_of_all(of.stopped.n_windows, of.stopped.of, unit);
            let why = of.stopped.why.as_deref().unwrap_or_default();
            let why = format!("{why}, after {done}");
            match stopped.iter_mut().find(|others| others.why == why) {
                Some(others) => others.file += &format!(", {label}"),
                None => stopped.push(LeftOut {
                    file: label.clone(),
                    why,
                }),
            }
        }
        let mut lists = vec![("Stopped", stopped), ("Left out", self.left_out.clone())];
        lists.retain(|(_, files)| !files.is_empty());
        lists
    }

    /// A row for each quant, those that stopped last.
    fn rows(&self) -> Vec<PickRow<'_>> {
        let measured = self.models.iter().map(|of| PickRow {
            result: &of.model.result,
            marks: self.marks(of),
        });
        let stopped = self.stopped.iter().map(|of| PickRow {
            result: &of.result,
            marks: format!(" {STOPPED} "),
        });
        measured.chain(stopped).collect()
    }

    /// The table of all quants.
    pub(crate) fn table(&self, name: ShownName<'_>) -> Table<PickRow<'_>> {
        let memory = |of: &PickRow<'_>| Some(of.result.memory?.bytes());
        let size = |of: &PickRow<'_>| of.result.model.shown_bytes();
        let rows = self.rows();
        let largest = rows.iter().flat_map(|of| [memory(of), size(of)]);
        let unit = SizeUnit::for_sizes(largest.flatten().max().unwrap_or(0));
        let in_unit = |bytes: Option<u64>| Some(bytes? as f64 / unit.bytes);
        let two_decimals = |number: f64| fixed(number, 2);
        let interval = self.comparison.interval_title();
        Table::new("", rows)
            .left("\nmodel", |of| name(&of.result.label))
            .left("", |of| of.marks.clone())
            .number("size\n", |of| in_unit(size(of)), two_decimals)
            .unit(unit.symbol)
            .number("memory\n", |of| in_unit(memory(of)), two_decimals)
            .unit(unit.symbol)
            .speeds(|of| of.result.speed)
            .estimate(
                ["mean\nKLD", &interval],
                |of| of.result.mean_kld(),
                short_kld,
            )
            .number(
                "same\ntop",
                |of| of.result.same_top(),
                |share| fixed(100.0 * share, 2),
            )
            .unit("%")
    }

    fn is_pick(&self, of: &PickedModel) -> bool {
        let pick = self.pick.as_ref();
        pick.is_some_and(|pick| pick.label == of.model.label)
    }

    fn marks(&self, of: &PickedModel) -> String {
        let pick = if self.is_pick(of) { PICK } else { " " };
        let near = match (of.fits, of.is_near_enough) {
            (false, _) => TOO_LARGE,
            (true, true) => NEAR,
            (true, false) => " ",
        };
        let front = if of.on_front { FRONT } else { " " };
        format!("{pick}{near}{front}")
    }

    /// Explains the marks that occur.
    pub(crate) fn legend(&self) -> Vec<String> {
        let rows = self.rows();
        let is_used = |mark: &str| rows.iter().any(|of| of.marks.contains(mark));
        let near = match self.max_kld {
            Some(max_kld) => format!("surely below {} nats", short_kld(max_kld)),
            None => "none that fits is nearer, by more than chance".to_owned(),
        };
        let too_large = self.memory_limit.map(bytes).unwrap_or_default();
        let tokens = count_of(self.context, "token");
        let marks = [
            (PICK, "the pick".to_owned()),
            (NEAR, near),
            (
                FRONT,
                "on the front: no other that fits is as near, as fast and as small".to_owned(),
            ),
            (TOO_LARGE, format!("does not fit {too_large}")),
            (
                STOPPED,
                "stopped: cannot be the pick, so its numbers are of fewer windows".to_owned(),
            ),
        ];
        let used = marks.into_iter().filter(|(mark, _)| is_used(mark));
        let mut lines: Vec<String> = used.map(|(mark, what)| format!("{mark} {what}")).collect();
        lines.push(format!(
            "memory: weights, KV cache and buffers with a context of {tokens}"
        ));
        lines.extend(self.comparison.speed_legend());
        lines
    }
}
