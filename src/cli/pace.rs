//! The time that the rest of a run takes.

/// The time that the rows of a window take, learned from the first one.
///
/// Each row attends to all before it in its window, so in a long window each takes longer than the one
/// before: up to row x, `a x + b x²` seconds. Both are fitted by least squares.
#[derive(Default)]
pub struct Pace {
    // The sums of x², x³, x⁴, x t and x² t over the measured rows x and seconds t.
    x2: f64,
    x3: f64,
    x4: f64,
    xt: f64,
    x2t: f64,
}

impl Pace {
    /// Adds a measurement: the seconds after which so many rows of the first window were done.
    pub fn push(&mut self, rows: f64, seconds: f64) {
        let square = rows * rows;
        self.x2 += square;
        self.x3 += square * rows;
        self.x4 += square * square;
        self.xt += rows * seconds;
        self.x2t += square * seconds;
    }

    /// The seconds that the first `rows` rows of a window take by themselves; not finite before the
    /// first measurement.
    fn window(&self, rows: f64) -> f64 {
        let determinant = self.x2 * self.x4 - self.x3 * self.x3;
        let linear = (self.xt * self.x4 - self.x2t * self.x3) / determinant;
        let square = (self.x2t * self.x2 - self.xt * self.x3) / determinant;
        // One measurement gives a straight line, but for rounding. Neither may be below 0.
        let is_one = determinant <= 1e-9 * self.x2 * self.x4;
        let (linear, square) = match (linear, square) {
            (linear, _) if linear < 0.0 && !is_one => (0.0, self.x2t / self.x4),
            (_, square) if square > 0.0 && !is_one => (linear, square),
            _ => (self.xt / self.x2, 0.0),
        };
        linear * rows + square * rows * rows
    }

    /// The time left as a multiple of the time that the rows so far have taken, of windows of
    /// `per_window` rows; `None` before the first measurement.
    pub fn left(&self, done: f64, all: f64, per_window: f64) -> Option<f64> {
        let seconds = |rows: f64| {
            let windows = (rows / per_window).floor();
            windows * self.window(per_window) + self.window(rows - windows * per_window)
        };
        let share = (seconds(all) - seconds(done)) / seconds(done);
        share.is_finite().then_some(share.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pace of a run whose rows took `seconds` up to a row, measured up to `done`.
    fn pace(done: u32, seconds: impl Fn(f64) -> f64) -> Pace {
        let mut pace = Pace::default();
        for x in (64..=done).step_by(64).map(f64::from) {
            pace.push(x, seconds(x));
        }
        pace
    }

    #[test]
    fn a_long_window_takes_longer_the_longer_it_gets() {
        let seconds = |x: f64| 1e-3 * x + 1e-7 * x * x;
        let left = |done: u32, windows: f64| {
            let all = windows * 131_072.0;
            pace(done, seconds)
                .left(done.into(), all, 131_072.0)
                .unwrap()
                * seconds(done.into())
        };
        let whole = seconds(131_072.0);
        for done in [4096, 65_536, 131_072] {
            let expected = whole - seconds(done.into());
            assert!((left(done, 1.0) - expected).abs() < 1e-3 * whole, "{done}");
            assert!(
                (left(done, 3.0) - expected - 2.0 * whole).abs() < 1e-3 * whole,
                "{done}"
            );
        }
    }

    #[test]
    fn short_windows_take_a_time_in_proportion_to_their_rows() {
        let even = pace(511, |x| 0.01 * x);
        let left = even.left(511.0, 5110.0, 511.0).unwrap();
        assert!((left - 9.0).abs() < 1e-9, "{left}");
        // One measurement, as of windows that are one call.
        let mut one = Pace::default();
        one.push(511.0, 2.0);
        let left = one.left(1022.0, 2044.0, 511.0).unwrap();
        assert!((left - 1.0).abs() < 1e-9, "{left}");
        assert_eq!(Pace::default().left(0.0, 100.0, 10.0), None);
    }
}
