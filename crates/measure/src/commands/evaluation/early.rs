//! Leaves alone those of many quants that cannot be the pick, by the rule of `kl_report::pick::early`.

use std::collections::BTreeMap;
use std::sync::Mutex;

use kl_formats::{SidecarHeader, TokenRecord};
use kl_report::ContextMemory;
use kl_report::pick::early::{EarlyRule, Look};
use kl_system::locked;

use crate::commands::report::model_of_header;

/// The quants of a run that are measured to the end, beside which each of the others is looked at once.
#[derive(Debug)]
pub struct EarlyStop {
    rule: EarlyRule,
    /// By their labels.
    whole: Mutex<BTreeMap<String, Look>>,
}

impl EarlyStop {
    /// Stops quants by a rule; none is measured yet.
    pub fn new(rule: EarlyRule) -> Self {
        Self {
            rule,
            whole: Mutex::default(),
        }
    }

    /// True if it may stop any.
    pub fn may_stop(&self) -> bool {
        self.rule.looks_after().is_some()
    }

    /// True once so many windows are measured that the quant is to be looked at.
    pub fn looks_after(&self, n_windows: u64) -> bool {
        self.rule.looks_after() == Some(n_windows)
    }

    /// Why a quant is not worth measuring to the end, in words that follow its name; `None` where it is, and before enough
    /// of its windows are measured. `records`: those so far, of whole windows.
    pub fn why_not(&self, header: &SidecarHeader, records: &[TokenRecord]) -> Option<String> {
        let look = self.look(header, records)?;
        self.rule
            .why_not(&look, locked(&self.whole).values().collect())
    }

    /// Adds a quant that is measured to the end.
    pub fn add(&self, header: &SidecarHeader, records: &[TokenRecord]) {
        if let Some(look) = self.look(header, records) {
            locked(&self.whole).insert(look.label.clone(), look);
        }
    }

    /// What the first windows show of a quant; `None` if there are fewer.
    fn look(&self, header: &SidecarHeader, records: &[TokenRecord]) -> Option<Look> {
        let n = self.rule.looks_after()?;
        let windows = TokenRecord::windows(records);
        let lengths: Vec<usize> = windows.take(n as usize).map(<[_]>::len).collect();
        if (lengths.len() as u64) < n {
            return None;
        }
        let (quant, set_up) = (model_of_header(header), header.backend.as_ref());
        let memory =
            set_up.and_then(|set_up| ContextMemory::of(&quant.model, set_up, self.rule.context));
        Some(Look {
            label: quant.label,
            memory: memory.map(|memory| memory.bytes()),
            generation: quant.speed.map(|speed| speed.generation),
            records: records.get(..lengths.iter().sum())?.to_vec(),
        })
    }
}
