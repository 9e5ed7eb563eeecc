//! Where the rows of a reference come from: stored, in blocks or a stream, or computed, from hidden
//! states or by a second model.

use std::io::Read;
use std::sync::Mutex;

use kl_formats::{NativeReader, ReadBlocks, Reference, Rows, States, WindowEntry, WindowSpec};
use serde::Serialize;

use super::Error;
use super::stream::Stream;
use crate::engine::{EngineError, Head};
use crate::score::RowError;

/// The KLD, in nats, from which a computed row cannot be the model's own: a writer stops at 1e-4, and
/// the kernels of other backends move a row by 1e-7 to 1e-4.
const WRONG_KLD: f64 = 0.1;

/// Where the rows of a reference come from.
pub(super) enum Source<'h> {
    /// A file whose blocks of rows can be read in any order.
    Blocks(Box<dyn ReadBlocks>),
    /// A file that can only be read from its start.
    Stream(Mutex<Stream>),
    /// A file of hidden states, and the head that makes rows of them: several windows use it in turn,
    /// one product at a time.
    States {
        file: Box<NativeReader>,
        states: States,
        head: Mutex<Box<dyn Head + 'h>>,
    },
    /// A second model, which runs over these windows in contexts that the caller adds.
    Model(Vec<WindowSpec>),
}

/// Where rows are computed, and how far they are from the model's own.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "HereInfo"))]
pub struct RowsHere {
    /// The device: `CPU`, `CUDA0`.
    pub device: String,
    /// The distance of the rows that the file also holds as the model gave them from those computed
    /// here. No rows: the file is a part without the window that they are of.
    #[serde(flatten)]
    pub error: RowError,
    /// True if all of them are equal to the bit; null without rows.
    pub is_exact: Option<bool>,
    /// True if the evaluated model's own head is the same, so that memory holds it once.
    pub shares_model_head: bool,
}

impl RowsHere {
    /// Returns true if an accelerator computes them.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        self.device != "CPU"
    }
}

impl<'h> Source<'h> {
    /// Opens the rows of a reference. Of hidden states, `make` prepares the head, which is checked.
    pub(super) fn open<H: Head + 'h>(
        reference: Reference,
        make: impl FnOnce(&States, &mut dyn Read) -> Result<H, EngineError>,
    ) -> Result<(Self, Option<RowsHere>), Error> {
        let n_vocab = reference.about().n_vocab;
        let windows = reference.windows().unwrap_or_default().to_vec();
        let path = &reference.path().to_owned();
        let stored = |source| Ok((source, None));
        let (file, states) = match reference.into_rows() {
            Rows::Blocks(blocks) => return stored(Self::Blocks(blocks)),
            Rows::Stream(reader) => {
                return stored(Self::Stream(Mutex::new(Stream::new(reader, n_vocab))));
            }
            Rows::Windows(windows) => return stored(Self::Model(windows)),
            Rows::States(file, states) => (file, states),
        };
        let path = path.display();
        let mut head = make(&states, &mut *file.head()).map_err(|cause| match cause {
            // The file's own error has its path.
            EngineError::ReadHead(error)
                if error.get_ref().is_some_and(|e| e.is::<kl_formats::Error>()) =>
            {
                Error::Reference(error.to_string())
            }
            cause => Error::Reference(format!("{path}: {cause}")),
        })?;
        let error = check(&file, &states, &windows, &mut head)?;
        let here = RowsHere {
            device: head.device().to_owned(),
            error,
            is_exact: (error.n_rows > 0).then(|| error.is_exact()),
            shares_model_head: head.is_shared(),
        };
        if error.max_kld >= WRONG_KLD {
            let (device, max_kld) = (here.device, error.max_kld);
            return Err(Error::Reference(format!(
                "{path}: the rows computed from its hidden states on {device} are not those of the model that wrote it, by a KLD of up to {max_kld:.3} nats: kl info --verify shows whether the file is damaged; if not, write it again with --encoding u16"
            )));
        }
        let head: Mutex<Box<dyn Head + 'h>> = Mutex::new(Box::new(head));
        Ok((Self::States { file, states, head }, Some(here)))
    }

    /// The file's blocks, of rows or of hidden states; `None` where it has none.
    pub(super) fn blocks(&self) -> Option<&dyn ReadBlocks> {
        match self {
            Self::Blocks(blocks) => Some(&**blocks),
            Self::States { file, .. } => Some(&**file),
            Self::Stream(_) | Self::Model(_) => None,
        }
    }
}

/// Computes the rows that the file also holds as the model gave them, each in its batch, and compares
/// both.
fn check(
    file: &NativeReader,
    states: &States,
    windows: &[WindowEntry],
    head: &mut impl Head,
) -> Result<RowError, Error> {
    let mut all = RowError::default();
    let own = file.check_rows()?;
    let (mut last, mut numbers) = (None, Vec::new());
    for (i, window) in windows.iter().enumerate() {
        for group in states.groups(window) {
            let of_group = states.check.rows.iter().zip(&own).filter_map(|(row, own)| {
                let index = row.position.checked_sub(window.first_scored)?;
                let is_here = row.window == window.window && group.contains(&index);
                is_here.then(|| ((index - group.start) as usize, own))
            });
            let of_group: Vec<_> = of_group.collect();
            if of_group.is_empty() {
                continue;
            }
            numbers.clear();
            file.read_states(i, group, &mut last, &mut numbers)?;
            let n_vocab = head.n_vocab();
            let computed = head.rows(&numbers)?;
            for (column, own) in of_group {
                let again = &computed[column * n_vocab..][..n_vocab];
                let compared = RowError::each(&[own], again).into_iter();
                compared.for_each(|row| all += row);
            }
        }
    }
    Ok(all)
}
