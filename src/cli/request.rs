//! What a call asks for.

use std::path::{Path, PathBuf};

use super::args::{DoctorArgs, InfoArgs};
use super::remade::ReportForm;
use super::results::Outputs;
use super::terminal::Detail;
use crate::commands::settings::{
    CheckSettings, CompareSettings, ConvertSettings, EvaluateSettings, MergeSettings,
    ReferenceSource, ReportSettings, WriteSettings,
};
use crate::input::{self, Source};
use crate::recipe::settings::{RecipeSettings, SensitivitySettings};

/// A command with its settings, made of flags that [`rules`](super::rules) has checked.
#[derive(Debug)]
pub enum Request {
    Write(Box<WriteSettings>),
    Evaluate {
        settings: Box<EvaluateSettings>,
        json: Option<PathBuf>,
        detail: Detail,
    },
    /// The servers whose devices are listed too.
    ListDevices(Vec<String>),
    Info(InfoArgs),
    Convert(ConvertSettings),
    Merge(MergeSettings),
    Compare {
        settings: Box<CompareSettings>,
        json: Option<PathBuf>,
        detail: Detail,
    },
    Report {
        settings: Box<ReportSettings>,
        outputs: Outputs,
        form: ReportForm,
        detail: Detail,
    },
    Sensitivity(Box<SensitivitySettings>, Outputs),
    Recipe {
        settings: Box<RecipeSettings>,
        outputs: Outputs,
        /// The JSON of a report, whose quants the page draws beside the recipe.
        report: Option<PathBuf>,
    },
    Check(Box<CheckSettings>, Outputs),
    Doctor(DoctorArgs),
}

impl Request {
    /// The files that a model is to run over, and what else a run of hours needs.
    pub fn inputs(&self) -> Vec<&Path> {
        match self {
            Self::Write(of) => of.input.files(),
            Self::Evaluate { settings, .. } => match &settings.reference {
                ReferenceSource::Model(model) => model.input.files(),
                ReferenceSource::File { path, .. } => vec![path],
            },
            Self::Sensitivity(of, _) => {
                let mut files = of.input.files();
                files.extend(of.imatrix.as_deref());
                files
            }
            Self::Recipe {
                settings, report, ..
            } => {
                let mut files = settings.text.as_ref().map_or_else(Vec::new, Source::files);
                files.extend(report.as_deref());
                files.extend(settings.imatrix.as_deref());
                files
            }
            Self::Check(of, _) => Vec::from_iter(of.text.as_deref().and_then(input::file)),
            _ => Vec::new(),
        }
    }
}
