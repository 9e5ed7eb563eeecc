//! The model and its rows, and cells that are measured once.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;

use kl::engine::{Blueprint, ContextOptions, Imatrix, Model, Weights, default_calls};
use kl::input::{Plan, ScoreFrom, Source};
use kl::pipeline::{KeptRows, ReferenceRows, Sources, Step, evaluate};
use kl::stats::is_counted;
use kl_formats::{
    Cell, GgmlType, MAP_VERSION, MapHeader, MapTensor, MapWindow, Mixture, SensitivityMap,
};

use crate::{MEASURED, Result, TYPES, kind};

/// Tokens in a window: of few tokens there should be many windows.
const N_CTX: u32 = 128;

/// The rows of a tensor of which weight errors are taken.
const ROWS_FOR_ERRORS: usize = 64;

/// A model whose tensors are exchanged, and what was measured of it.
pub struct Bench<'m> {
    model: &'m dyn Model,
    weights: &'m dyn Weights,
    options: ContextOptions,
    rows: KeptRows,
    blueprint: Blueprint,
    imatrix: Option<Imatrix>,
    /// The tensors that are exchanged: those that can have another type.
    pub tensors: Vec<MapTensor>,
    /// The weight errors of each, at the types that it can have.
    errors: BTreeMap<String, BTreeMap<GgmlType, f64>>,
    known: BTreeMap<Mixture, Cell>,
    file: File,
}

impl<'m> Bench<'m> {
    /// Decodes the text, and takes the weight errors of all tensors.
    pub fn new(
        model: &'m dyn Model,
        text: &str,
        blueprint: Blueprint,
        cells: &Path,
        imatrix: Option<Imatrix>,
    ) -> Result<Self> {
        let tokens = model.tokenize(text, false)?;
        let source = Source {
            n_ctx: Some(N_CTX),
            score: Some(ScoreFrom::All),
            ..Source::default()
        };
        let mut windows = Plan::cut(&tokens, &source, model.facts().bos()).windows;
        // All of the same length, so that so many windows are so many tokens.
        let longest = windows.iter().map(|window| window.n_rows).max();
        windows.retain(|window| Some(window.n_rows) == longest);
        let options = ContextOptions {
            n_ctx: N_CTX,
            calls: default_calls(model.facts().n_vocab, N_CTX),
            threads: num_cpus::get_physical() as u32,
            ..ContextOptions::default()
        };
        let (rows, _) = KeptRows::keep(sources(model, &options), windows, |_| Ok(()))?;
        let weights = model.weights()?;
        let names = weights.exchangeable()?;
        let tensors = blueprint.tensors.iter();
        let tensors = tensors.filter(|tensor| names.contains(&tensor.name));
        let mut this = Self {
            model,
            weights,
            options,
            rows,
            tensors: tensors.cloned().collect(),
            blueprint,
            imatrix,
            errors: BTreeMap::new(),
            known: BTreeMap::new(),
            file: OpenOptions::new().append(true).create(true).open(cells)?,
        };
        for line in BufReader::new(File::open(cells)?).lines() {
            let cell: Cell = serde_json::from_str(&line?)?;
            if cell.klds.len() != this.n_windows() {
                return Err("the cells are those of another text: give another file".into());
            }
            this.known.insert(cell.exchanged.clone(), cell);
        }
        let imatrix = this.imatrix.as_ref();
        for tensor in &this.tensors {
            let fits = |kind: &GgmlType| tensor.shape[0].is_multiple_of(kind.block);
            // A type that needs an importance matrix is left out where there is none.
            let error = |kind| {
                let errors = weights.errors(&tensor.name, &[kind], imatrix, ROWS_FOR_ERRORS);
                Some((kind, *errors.ok()?.first()?))
            };
            let kinds = TYPES.map(kind).into_iter().filter(fits);
            let errors = kinds.filter_map(error).collect();
            this.errors.insert(tensor.name.clone(), errors);
        }
        let errors = &this.errors;
        this.tensors
            .retain(|tensor| !errors[&tensor.name].is_empty());
        Ok(this)
    }

    /// The number of windows.
    pub fn n_windows(&self) -> usize {
        self.rows.windows.len()
    }

    /// Tokens that are counted of a window.
    pub fn n_rows(&self) -> u32 {
        self.rows.windows.first().map_or(0, |window| window.n_rows)
    }

    /// The types that a tensor can have.
    pub fn types(&self, tensor: &MapTensor) -> impl Iterator<Item = GgmlType> {
        self.errors[&tensor.name].keys().copied()
    }

    /// The type at which a map measures a tensor.
    pub fn measured_type(&self, tensor: &MapTensor) -> GgmlType {
        let [usual, other] = MEASURED.map(kind);
        match self.types(tensor).any(|kind| kind == usual) {
            true => usual,
            false => other,
        }
    }

    /// A tensor alone at a type.
    pub fn single(&self, tensor: &MapTensor, kind: GgmlType) -> Mixture {
        [(tensor.name.clone(), kind)].into()
    }

    /// All tensors at a type, or at the one of the next more bits that fits.
    pub fn all_at(&self, kind: GgmlType) -> Mixture {
        let nearest = |tensor: &MapTensor| {
            let wider = self.types(tensor).filter(|of| of.bits() >= kind.bits());
            let least = wider.min_by(|a, b| a.bits().total_cmp(&b.bits()));
            match self.types(tensor).any(|of| of == kind) {
                true => kind,
                false => least.unwrap_or(tensor.kind),
            }
        };
        let tensors = self.tensors.iter();
        tensors.map(|of| (of.name.clone(), nearest(of))).collect()
    }

    /// The weight error of a tensor at a type.
    pub fn error(&self, tensor: &MapTensor, kind: GgmlType) -> f64 {
        self.errors[&tensor.name][&kind]
    }

    /// A mixture's KLDs on all windows.
    pub fn measure(&mut self, mixture: &Mixture) -> Result<&Cell> {
        if !self.known.contains_key(mixture) {
            let cell = self.evaluate(mixture)?;
            serde_json::to_writer(&self.file, &cell)?;
            writeln!(self.file)?;
            self.known.insert(mixture.clone(), cell);
        }
        Ok(&self.known[mixture])
    }

    /// A mixture's mean KLD on all windows.
    pub fn mean(&mut self, mixture: &Mixture) -> Result<f64> {
        let cell = self.measure(mixture)?;
        let n: f64 = cell.n_tokens.iter().copied().map(f64::from).sum();
        Ok(cell.klds.iter().sum::<f64>() / n)
    }

    fn evaluate(&self, mixture: &Mixture) -> Result<Cell> {
        self.weights
            .exchange(mixture, self.imatrix.as_ref(), &|| false)?;
        let mut cell = Cell {
            exchanged: mixture.clone(),
            ..Cell::default()
        };
        let rows = ReferenceRows::kept(&self.rows, 0..self.n_windows());
        evaluate(
            sources(self.model, &self.options),
            &rows,
            |_| (),
            |step| {
                if let Step::Window(scored) = step {
                    let counted = || scored.records.iter().filter(|record| is_counted(record));
                    cell.klds.push(counted().map(|record| record.kld).sum());
                    cell.n_tokens.push(counted().count() as u32);
                }
                Ok(())
            },
        )?;
        Ok(cell)
    }

    /// A map of some cells, each measured on so many of the windows, in this order.
    pub fn map(&mut self, cells: &[(Mixture, usize)], windows: &[usize]) -> Result<SensitivityMap> {
        let mut measured = Vec::new();
        for (mixture, n) in cells {
            let all = self.measure(mixture)?;
            let windows = windows.iter().take(*n);
            measured.push(Cell {
                exchanged: mixture.clone(),
                from: 0,
                klds: windows.clone().map(|&i| all.klds[i]).collect(),
                n_tokens: windows.map(|&i| all.n_tokens[i]).collect(),
            });
        }
        let listed = windows.iter().map(|&i| &self.rows.windows[i]);
        let own = self.tensors.iter().map(|tensor| tensor.kind);
        Ok(SensitivityMap {
            header: MapHeader {
                kl_map: MAP_VERSION,
                provenance: Default::default(),
                reference: None,
                windows: listed
                    .map(|window| MapWindow {
                        window: window.window,
                        n_rows: window.n_rows,
                    })
                    .collect(),
                measured_type: kind(MEASURED[0]),
                types: TYPES.map(kind).into_iter().chain(own).collect(),
                imatrix: self.imatrix.as_ref().map(|of| of.identity.clone()),
                metadata_bytes: self.blueprint.metadata_bytes,
                alignment: self.blueprint.alignment,
                tensors: self.blueprint.tensors.clone(),
            },
            errors: self.errors.clone(),
            cells: measured,
            is_cut_off: false,
        })
    }
}

/// One context of the model.
fn sources<'m>(model: &'m dyn Model, options: &'m ContextOptions) -> Sources<'m> {
    Sources {
        n: 1,
        make: Box::new(move || Ok(Box::new(model.decoder(options)?))),
        device: None,
        n_windows: 1,
    }
}
