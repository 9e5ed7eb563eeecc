//! A reference whose rows can be had: where it holds hidden states, with the head that makes rows of
//! them, after a check that it makes the right ones.

use std::io::{self, Read};
use std::sync::Mutex;

use kl_formats::{ReadStates, Reference, Rows, States, WindowEntry};

use super::Error;
use super::device_clock::DeviceClock;
use super::second_model::{Contexts, SharedContexts};
use super::states::SharedHead;
use crate::engine::{Decoder, EngineError, Head};
use crate::score::{Kernel, Recomputed};

/// The KLD, in nats, from which a computed row cannot be the model's own: a writer stops at 1e-4, and
/// the kernels of other backends move a row by 1e-7 to 1e-4.
const WRONG_KLD: f64 = 0.1;

/// A reference whose rows can be had.
pub struct Readable<'h> {
    pub(super) reference: Reference,
    pub(super) computed_by: Option<ComputedBy<'h>>,
    here: Option<RowsHere>,
    /// Measures the accelerator that computes its rows.
    pub(super) device: Option<DeviceClock>,
}

/// What computes rows that are not stored.
pub(super) enum ComputedBy<'h> {
    /// The head of hidden states.
    Head(Box<dyn SharedHead + 'h>),
    /// A second model.
    Model(&'h dyn SharedContexts),
}

/// Where the rows of hidden states are computed, and how far they are from those of the model that
/// wrote them.
#[derive(Debug, Clone, PartialEq)]
pub struct RowsHere {
    /// The device: `CPU`, `CUDA0`.
    pub device: String,
    /// Whether the evaluated model's own head is the same, and so is in memory once.
    pub shares_model_head: bool,
    /// The model's own rows that the file holds, against the same rows computed here. None where
    /// the file is a part without the window that they are of.
    pub moved: Recomputed,
}

impl RowsHere {
    /// Whether an accelerator computes them.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        self.device != "CPU"
    }
}

impl<'h> Readable<'h> {
    /// Opens the rows of `reference`. Where it holds states, `make` prepares its head.
    ///
    /// # Errors
    /// Those of `make` and of the file; [`Error::WrongRows`].
    pub fn open<H: Head + 'h>(
        reference: Reference,
        make: impl FnOnce(&States, &mut dyn Read) -> Result<H, EngineError>,
    ) -> Result<Self, Error> {
        let Rows::States(rows) = reference.rows() else {
            return Ok(Self {
                reference,
                computed_by: None,
                here: None,
                device: None,
            });
        };
        let mut head = {
            let mut section = Section {
                bytes: rows.head(),
                fault: None,
            };
            let made = make(rows.states(), &mut section);
            match section.fault {
                Some(fault) => return Err(fault.into()),
                None => made.map_err(|cause| Error::Head {
                    path: reference.path().to_owned(),
                    cause,
                })?,
            }
        };
        let windows = reference.windows().unwrap_or_default();
        let here = RowsHere {
            moved: check(&**rows, windows, &mut head)?,
            device: head.device().to_owned(),
            shares_model_head: head.is_shared(),
        };
        if here.moved.max_kld >= WRONG_KLD {
            return Err(Error::WrongRows {
                path: reference.path().to_owned(),
                device: here.device,
                max_kld: here.moved.max_kld,
            });
        }
        Ok(Self {
            computed_by: Some(ComputedBy::Head(Box::new(Mutex::new(head)))),
            here: Some(here),
            device: None,
            reference,
        })
    }

    /// A [`reference_of_windows`](super::reference_of_windows), whose rows these contexts compute.
    #[must_use]
    pub fn computed_by<D: Decoder + Send>(reference: Reference, contexts: &'h Contexts<D>) -> Self {
        Self {
            reference,
            computed_by: Some(ComputedBy::Model(contexts)),
            here: None,
            device: None,
        }
    }

    /// Measures how busy the accelerator is that computes its rows, if one does.
    #[must_use]
    pub fn timed_by(self, device: Option<DeviceClock>) -> Self {
        Self { device, ..self }
    }

    /// Where its rows are computed; `None` where they are stored.
    #[must_use]
    pub fn here(&self) -> Option<&RowsHere> {
        self.here.as_ref()
    }
}

/// The head's bytes. It keeps the file's own error, of which an engine would pass on the words.
struct Section<'r> {
    bytes: Box<dyn Read + 'r>,
    fault: Option<kl_formats::Error>,
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(out).map_err(|error| {
            error.downcast().map_or_else(
                |error| error,
                |fault| {
                    self.fault = Some(fault);
                    io::Error::other("its bytes cannot be read")
                },
            )
        })
    }
}

/// Computes the rows that the file also holds as the model gave them, each in its batch, and compares
/// both.
fn check(
    rows: &dyn ReadStates,
    windows: &[WindowEntry],
    head: &mut impl Head,
) -> Result<Recomputed, Error> {
    let mut all = Recomputed::default();
    let wanted = &rows.states().check.rows;
    let stored = rows.check_rows()?;
    let mut states = Vec::new();
    for (i, entry) in windows.iter().enumerate() {
        let of_window = wanted.iter().zip(&stored);
        let of_window: Vec<_> = of_window
            .filter(|(row, _)| row.window == entry.window)
            .collect();
        if of_window.is_empty() {
            continue;
        }
        for group in rows.states().groups(entry) {
            let of_group = of_window.iter().filter_map(|(row, logits)| {
                let index = row.position.checked_sub(entry.first_scored)?;
                let column = index.checked_sub(group.start)?;
                group.contains(&index).then_some((column as usize, *logits))
            });
            let of_group: Vec<(usize, &Vec<f32>)> = of_group.collect();
            if of_group.is_empty() {
                continue;
            }
            states.clear();
            rows.read(i, group.clone(), &mut states)?;
            let n_vocab = head.n_vocab();
            let computed = head.rows(&states)?;
            for (column, logits) in of_group {
                let again = &computed[column * n_vocab..][..n_vocab];
                all += Recomputed::compare(Kernel::detect(), &[logits], again);
            }
        }
    }
    Ok(all)
}
