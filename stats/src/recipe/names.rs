//! The parts of a tensor's name.

/// A tensor's role and the number of its layer: `attn_v` and 3 of `blk.3.attn_v.weight`, `output` and
/// none of `output.weight`.
pub fn role_and_layer(name: &str) -> (String, Option<u32>) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let split = name.split_once("blk.").and_then(|(before, after)| {
        let (number, role) = after.split_once('.')?;
        Some((format!("{before}{role}"), number.parse().ok()?))
    });
    match split {
        Some((role, layer)) => (role, Some(layer)),
        None => (name.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_has_no_layer_in_it() {
        for (name, role, layer) in [
            ("blk.3.attn_v.weight", "attn_v", Some(3)),
            ("blk.12.ffn_down_exps.weight", "ffn_down_exps", Some(12)),
            ("blk.0.ffn_up.7.weight", "ffn_up.7", Some(0)),
            ("dec.blk.1.attn_q.weight", "dec.attn_q", Some(1)),
            ("output.weight", "output", None),
            ("blk.x.attn_q.weight", "blk.x.attn_q", None),
        ] {
            assert_eq!(role_and_layer(name), (role.to_owned(), layer));
        }
    }
}
