//! The machine's memory, as Linux reports it.

use std::fs;

/// Bytes of memory that a program could take now without swapping; `None` on other systems than
/// Linux.
pub fn available() -> Option<u64> {
    read("MemAvailable:")
}

/// Bytes of all memory; `None` on other systems than Linux.
pub fn total() -> Option<u64> {
    read("MemTotal:")
}

/// Bytes of swap space; `None` on other systems than Linux.
pub fn swap() -> Option<u64> {
    read("SwapTotal:")
}

fn read(name: &str) -> Option<u64> {
    in_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// The bytes of a line such as `MemTotal:  16384 kB`.
fn in_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_in_kilobytes() {
        let text = "MemTotal:       16384 kB\nMemFree: 5 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(in_meminfo(text, "MemTotal:"), Some(16 << 20));
        assert_eq!(in_meminfo(text, "MemAvailable:"), Some(22_000_000 * 1024));
        for (text, name) in [(text, "SwapTotal:"), ("MemTotal: many", "MemTotal:")] {
            assert_eq!(in_meminfo(text, name), None);
        }
    }
}
