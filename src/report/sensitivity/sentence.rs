//! A map in sentences.

use super::{RoleSensitivity, Sensitivity};
use crate::report::number::{or_undefined, printable, significant};

/// The most roles that a sentence names.
const MAX_NAMED: usize = 3;

/// Roles are called dear from this many times the average cost on, and cheap down to this.
const DEAR: f64 = 1.5;
const CHEAP: f64 = 0.5;

impl Sensitivity {
    /// Sentences of what costs much for its size, and what costs little.
    pub(in crate::report) fn sentences(&self) -> Vec<String> {
        let roles = |holds: &dyn Fn(f64) -> bool| -> Vec<&RoleSensitivity> {
            let roles = self.by_role.iter();
            roles
                .filter(|role| role.part.relative_cost.is_some_and(holds))
                .collect()
        };
        let list = |roles: &[&RoleSensitivity], unit: &str| {
            let named = roles.iter().take(MAX_NAMED).enumerate().map(|(i, role)| {
                let times = or_undefined(role.part.relative_cost, relative);
                let unit = if i == 0 { unit } else { "" };
                format!("{} ({times}{unit})", printable(&role.role))
            });
            let named = Vec::from_iter(named);
            match named.split_last() {
                Some((last, [])) => last.clone(),
                Some((last, first)) => format!("{} and {last}", first.join(", ")),
                None => String::new(),
            }
        };
        let dear = roles(&|cost| cost >= DEAR);
        let mut cheap = roles(&|cost| cost <= CHEAP);
        cheap.reverse();
        let mut sentences = Vec::new();
        let unit = " times the average";
        if !dear.is_empty() {
            let list = list(&dear, unit);
            sentences.push(format!(
                "A byte saved costs most in {list}: give more bits there."
            ));
        }
        if !cheap.is_empty() {
            let (subject, unit) = match dear.is_empty() {
                true => ("A byte saved", unit),
                false => ("It", ""),
            };
            let list = list(&cheap, unit);
            sentences.push(format!(
                "{subject} costs least in {list}: save there first."
            ));
        }
        sentences
    }
}

/// A relative cost: `8.0`, `0.031`.
pub(super) fn relative(cost: f64) -> String {
    significant(cost, 2)
}
