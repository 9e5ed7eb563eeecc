//! The bytes that a reference takes, and the room for them on its disk.

use anyhow::Result;
use kl_formats::{About, Encoding, Kind, Target, WindowSpec};
use kl_report::number::{bytes, rounded_down};

use super::choice::{Choice, expected_type};
use super::default::DefaultEncoding;
use crate::commands::output::{PartialFile, check_free_space};

impl Choice<'_, '_> {
    /// Most bytes that the file can have, as it is described now.
    pub fn max_bytes(&self) -> u64 {
        self.bytes_in(self.target, &self.about, &self.input.plan.windows)
    }

    fn bytes_in(&self, target: Target, about: &About, windows: &[WindowSpec]) -> u64 {
        let rows = target.projected_bytes(about, windows);
        rows.saturating_add(self.input.prompt_bytes())
    }

    /// Most bytes that a file of these windows can have in each encoding of its kind.
    pub fn sizes(&self, windows: &[WindowSpec]) -> Vec<(Target, u64)> {
        let mut about = self.about.clone();
        let mut targets = vec![self.target];
        if self.target.kind() == Kind::Kl {
            targets = [Encoding::U16, Encoding::F32].map(Target::Kl).into();
            if self.can_store_states
                && let Ok(mut states) = self.states()
            {
                states.state_type = expected_type(&states.head.type_name);
                about.states = Some(states);
                targets.push(Target::Kl(Encoding::Hidden));
            }
        }
        targets
            .into_iter()
            .map(|target| (target, self.bytes_in(target, &about, windows)))
            .collect()
    }

    /// Chooses the encoding by the windows of all parts, so that each part chooses alike. This plans to store codes.
    pub fn default_encoding(&self) -> DefaultEncoding {
        let sizes = self.sizes(self.input.plan.whole());
        let size = |encoding| {
            sizes
                .iter()
                .find(|(target, _)| *target == Target::Kl(encoding))
                .map(|(_, size)| *size)
        };
        let codes = size(Encoding::U16).unwrap_or(0);
        let Some(states) = size(Encoding::Hidden) else {
            let architecture = self.architecture();
            return DefaultEncoding::codes(&format!(
                "rows of this model ({architecture}) cannot be computed from hidden states"
            ));
        };
        let scope = match self.settings.part {
            Some(_) => " for all parts",
            None => "",
        };
        let default = DefaultEncoding::by_size(codes, states, scope);
        if default.encoding.holds_states() && self.read_from_disk.is_some() {
            let states = bytes(states);
            return DefaultEncoding::codes(&format!(
                "hidden would take {states}{scope}, and read the weights from the disk for each window"
            ));
        }
        default
    }

    /// Most bytes of this part's file as it is planned.
    pub fn planned_bytes(&self) -> u64 {
        let shard = self.input.provenance.shard;
        let n_parts = shard.map_or(1, |shard| u64::from(shard.count.max(1)));
        self.sizes(&self.input.plan.windows)
            .into_iter()
            .find(|(target, _)| *target == self.target)
            .map_or(0, |(_, size)| size / n_parts)
    }

    /// Refuses a file that does not fit on its disk. `bytes_kept`: those that it has of an earlier run, which
    /// began it.
    ///
    /// # Errors
    /// The sizes, and what would fit.
    pub fn check_room(&self, output: &PartialFile, bytes_kept: u64) -> Result<()> {
        let size = self.max_bytes().saturating_sub(bytes_kept);
        check_free_space(output.path(), &self.settings.output, size, |free| {
            if bytes_kept > 0 {
                return "make room there".to_owned();
            }
            let mut remedies = Vec::from_iter(self.encoding_that_fits(free));
            remedies.extend(self.rows_that_fit(free).map(|n| format!("-n {n}")));
            remedies.push("another disk".to_owned());
            format!("use {}", remedies.join(", or "))
        })
    }

    /// The flag for an encoding in which the file fits into `free` bytes, and its size.
    fn encoding_that_fits(&self, free: u64) -> Option<String> {
        // Hidden states, the last of them, are exact.
        let (target, size) = self
            .sizes(&self.input.plan.windows)
            .into_iter()
            .rev()
            .find(|(target, size)| *size <= free && *target != self.target)?;
        Some(format!(
            "--encoding {} ({})",
            target.encoding(),
            bytes(size)
        ))
    }

    /// About the most rows of all parts with which this part's file fits into `free` bytes.
    fn rows_that_fit(&self, free: u64) -> Option<u64> {
        // A base file holds all windows of its text.
        if self.target.kind() == Kind::LlamaCpp {
            return None;
        }
        let part = self.settings.part;
        let plan = &self.input.plan;
        let fits = |n_rows| {
            let windows = plan.with_rows(n_rows, part);
            self.bytes_in(self.target, &self.about, &windows) <= free
        };
        let (mut fitting, mut too_many) = (0, kl_formats::n_rows(plan.whole()));
        while too_many - fitting > 1 + fitting / 100 {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        Some(rounded_down(fitting)).filter(|&n| n > 0)
    }
}
