//! The encoding of a reference where none is asked for: codes of 16 bits, or hidden states where those
//! take far less of the disk.

use kl_formats::Encoding;

use kl_report::number::bytes;

/// Up to this size, codes are chosen: they are quicker to read, the same on every machine, and other programs
/// read them.
const MAX_CODE_BYTES: u64 = 1 << 30;

/// Hidden states are chosen if codes take at least this many times as much: they hold a copy of the output head, and
/// their rows are computed whenever they are read.
const MIN_FACTOR: u64 = 4;

/// The encoding that is chosen for a reference, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultEncoding {
    pub encoding: Encoding,
    /// The reason, with the size that the other encoding would have, as the end of a line that names this one.
    pub reason: String,
}

impl DefaultEncoding {
    /// Chooses by the bytes that a file would have of codes and of hidden states. `scope` follows a size.
    pub fn by_size(codes: u64, states: u64, scope: &str) -> Self {
        let would_take = |size| format!("would take {}{scope}", bytes(size));
        let (encoding, reason) = if codes <= MAX_CODE_BYTES {
            let max_gib = MAX_CODE_BYTES >> 30;
            let reason = format!(
                ", the default up to {max_gib} GiB; hidden {}",
                would_take(states)
            );
            (Encoding::U16, reason)
        } else if codes / MIN_FACTOR < states {
            let reason = format!("; hidden {}, not a quarter of it", would_take(states));
            (Encoding::U16, reason)
        } else {
            (Encoding::Hidden, format!("; u16 {}", would_take(codes)))
        };
        Self { encoding, reason }
    }

    /// Codes, for a reason that is a clause.
    pub fn codes(reason: &str) -> Self {
        Self {
            encoding: Encoding::U16,
            reason: format!("; {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_up_to_a_gibibyte_and_then_what_is_four_times_smaller() {
        const GIB: u64 = 1 << 30;
        let chosen = |codes, states| {
            let default = DefaultEncoding::by_size(codes, states, "");
            format!("{}{}", default.encoding, default.reason)
        };
        for (codes, states, expected) in [
            (
                GIB,
                1 << 20,
                "u16, the default up to 1 GiB; hidden would take 1.00 MiB",
            ),
            (
                GIB,
                2 * GIB,
                "u16, the default up to 1 GiB; hidden would take 2.00 GiB",
            ),
            (4 * GIB, GIB, "hidden; u16 would take 4.00 GiB"),
            (
                4 * GIB,
                GIB + 1,
                "u16; hidden would take 1.00 GiB, not a quarter of it",
            ),
            (
                4 * GIB,
                u64::MAX,
                "u16; hidden would take 16.00 EiB, not a quarter of it",
            ),
        ] {
            assert_eq!(chosen(codes, states), expected);
        }
    }
}
