//! What files hold, decoded, and plain float64 arithmetic to check results with.

use std::fs::File;

use kl_formats::sidecar::{SidecarHeader, SidecarReader, TokenRecord};
use kl_formats::{
    About, Encoding, Header, Kind, NativeReader, Reference, RowBlock, Rows, Target, Values,
    WindowEntry, WindowSpec, Writer,
};
use serde_json::Value;

use crate::session::Session;

pub use kl::score::testing::{kld, log_softmax, top};

/// A window of a reference, its rows decoded.
#[derive(Debug, PartialEq)]
pub struct Window {
    pub spec: WindowSpec,
    pub rows: Vec<Vec<f32>>,
}

impl Session {
    /// The header of a native reference.
    pub fn header(&self, name: &str) -> Header {
        let reader = NativeReader::open(&self.path(name)).unwrap();
        reader.header.clone()
    }

    /// The windows of a reference of any kind, in the file's order.
    pub fn windows(&self, name: &str) -> Vec<Window> {
        let reference = Reference::open(&self.path(name)).unwrap();
        let n_windows = reference.windows().map_or(0, <[WindowEntry]>::len);
        let mut windows = Vec::new();
        match reference.into_rows() {
            Rows::Stream(mut stream) => {
                while let Some(spec) = stream.next_window().unwrap() {
                    let mut rows = Vec::new();
                    while let Some(block) = stream.next_rows(5).unwrap() {
                        rows.extend(decoded(&block));
                    }
                    windows.push(Window { spec, rows });
                }
            }
            Rows::Blocks(blocks) => windows.extend((0..n_windows).map(|i| {
                let block = |b| decoded(&blocks.block(i, b, None).unwrap());
                Window {
                    spec: blocks.window(i).unwrap(),
                    rows: (0..blocks.n_blocks(i)).flat_map(block).collect(),
                }
            })),
            rows => panic!("no rows of logits: {rows:?}"),
        }
        windows
    }

    /// The windows of a reference without their rows.
    pub fn specs(&self, name: &str) -> Vec<WindowSpec> {
        let windows = self.windows(name).into_iter();
        windows.map(|window| window.spec).collect()
    }

    /// Each window's tokens in a reference.
    pub fn tokens(&self, name: &str) -> Vec<Vec<u32>> {
        let specs = self.specs(name).into_iter();
        specs.map(|spec| spec.tokens).collect()
    }

    /// All rows of a reference, in the file's order.
    pub fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let windows = self.windows(name).into_iter();
        windows.flat_map(|window| window.rows).collect()
    }

    /// All records of a sidecar.
    pub fn records(&self, name: &str) -> Vec<TokenRecord> {
        self.sidecar(name).1
    }

    /// All records of a sidecar as text: a NaN, as after a window's last token, equals a NaN.
    pub fn record_bits(&self, name: &str) -> String {
        let records = self.records(name);
        assert!(!records.is_empty());
        format!("{records:?}")
    }

    /// The header and all records of a sidecar.
    pub fn sidecar(&self, name: &str) -> (SidecarHeader, Vec<TokenRecord>) {
        let reader = SidecarReader::open(&self.path(name)).unwrap();
        (reader.header.clone(), reader.read_all().unwrap())
    }

    /// Writes `ref.gz`, and `bad.gz` with a NaN in one of its rows.
    pub fn reference_with_nan(&self) {
        self.reference("--encoding f32");
        self.rewrite("ref.gz", "bad.gz", |window, row, mut logits| {
            if (window, row) == (1, 7) {
                logits[500] = f32::NAN;
            }
            logits
        });
    }

    /// Writes a reference of these windows: kl's own with exact rows, or another kind of file.
    pub fn write_windows(
        &self,
        name: &str,
        kind: Kind,
        values: Values,
        n_ctx: u32,
        windows: &[Window],
    ) {
        let path = self.path(name);
        let file = File::create(&path).unwrap();
        let encoding = (kind == Kind::Kl).then_some(Encoding::F32);
        let target = Target::new(kind, encoding).unwrap();
        let mut about = About::new(kind, &path, n_ctx, windows[0].rows[0].len() as u32);
        about.values = values;
        let specs: Vec<_> = windows.iter().map(|window| window.spec.clone()).collect();
        let writer = Writer::create(file, &path, target, &about, &specs).unwrap();
        write_all(writer, windows);
    }

    /// Writes the native reference `from` again as `to`. `change` gets a window's number, the index
    /// of a row in it and the row's logits, and returns those to write: as many for every row.
    pub fn rewrite(&self, from: &str, to: &str, change: impl Fn(u32, usize, Vec<f32>) -> Vec<f32>) {
        let (mut windows, mut header) = (self.windows(from), self.header(from));
        for Window { spec, rows } in &mut windows {
            for (i, row) in rows.iter_mut().enumerate() {
                *row = change(spec.window, i, std::mem::take(row));
            }
        }
        header.n_vocab = windows[0].rows[0].len() as u32;
        let path = self.path(to);
        let file = File::create(&path).unwrap();
        write_all(Writer::native(file, &path, &header).unwrap(), &windows);
    }
}

fn write_all(mut writer: Writer<File>, windows: &[Window]) {
    for Window { spec, rows } in windows {
        writer.write_window(spec, rows).unwrap();
    }
    writer.finish().unwrap();
}

/// The logits of a block's rows.
pub fn decoded(block: &RowBlock) -> Vec<Vec<f32>> {
    let rows = block.rows().map(|row| {
        let mut logits = vec![0.0; row.len()];
        row.decode_into(&mut logits);
        logits
    });
    rows.collect()
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// A number of the JSON.
#[track_caller]
pub fn number(value: &Value) -> f64 {
    let number = value.as_f64();
    number.unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Checks that a number is as accurate as promised: 1e-6 relative or 1e-9 absolute.
#[track_caller]
pub fn accurate(ours: f64, exact: f64, what: &str) {
    close(ours, exact, (1e-6 * exact.abs()).max(1e-9), what);
}

#[track_caller]
pub fn close(ours: f64, exact: f64, bound: f64, what: &str) {
    let error = (ours - exact).abs();
    assert!(error <= bound, "{what}: {ours}, expected {exact}");
}
