//! The faults of a file's prompts, reported together: whoever mends a file wants to know all of them.

/// The most prompts that are named; the rest are counted.
const MAX_NAMED: usize = 20;

/// The faults of prompts, in the file's order.
#[derive(Default)]
pub struct Faults {
    /// The faults of the first prompts, each with the positions of the prompts that have it.
    named: Vec<(String, Vec<String>)>,
    /// The number of prompts that have one.
    n: usize,
}

impl Faults {
    /// Adds the fault of the prompt at this position of the file, such as `line 3`.
    pub fn push(&mut self, place: &str, fault: String) {
        self.n += 1;
        if self.n > MAX_NAMED {
            return;
        }
        match self.named.iter_mut().find(|(other, _)| *other == fault) {
            Some((_, places)) => places.push(place.to_owned()),
            None => self.named.push((fault, vec![place.to_owned()])),
        }
    }

    /// The faults in one line, if there are any: of one prompt `line 3: FAULT`; of several, with their
    /// number, `n_prompts` that were looked at, and what to do.
    pub fn message(&self, n_prompts: usize) -> Option<String> {
        let faults: Vec<String> = self
            .named
            .iter()
            .map(|(fault, places)| format!("{}: {fault}", places.join(", ")))
            .collect();
        let faults = faults.join("; ");
        let n_unnamed = self.n.saturating_sub(MAX_NAMED);
        match (self.n, n_unnamed) {
            (0, _) => None,
            (1, _) => Some(faults),
            (n, 0) => Some(format!(
                "{n} of {n_prompts} prompts cannot be used, correct them or leave them out: {faults}"
            )),
            (n, n_unnamed) => Some(format!(
                "{n} of {n_prompts} prompts cannot be used, correct them or leave them out: {faults}; and {n_unnamed} more"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(faults: &[(&str, &str)]) -> Option<String> {
        let mut all = Faults::default();
        for (place, fault) in faults {
            all.push(place, (*fault).to_owned());
        }
        all.message(40)
    }

    #[test]
    fn all_are_named_up_to_a_limit() {
        assert_eq!(message_of(&[]), None);
        let one = message_of(&[("line 8", "no role")]).unwrap();
        assert_eq!(one, "line 8: no role");
        let three = message_of(&[
            ("line 8", "no role"),
            ("line 9", "too long"),
            ("line 21", "no role"),
        ]);
        assert_eq!(
            three.unwrap(),
            "3 of 40 prompts cannot be used, correct them or leave them out: \
             line 8, line 21: no role; line 9: too long"
        );
        let many = message_of(&[("line 1", "no role"); MAX_NAMED + 5]).unwrap();
        assert!(many.starts_with("25 of 40 ") && many.ends_with("line 1: no role; and 5 more"));
        assert_eq!(many.matches("line 1").count(), MAX_NAMED);
    }
}
