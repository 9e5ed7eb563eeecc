//! The names of rows.

use crate::report::comparison::ComparedModel;
use crate::report::set_up::{DISTINCTIONS, SettingValue};

/// The path of a row's sidecar, or of its model where it has none.
fn path_of(model: &ComparedModel) -> &str {
    match model.sidecar.as_str() {
        "" => &model.model.path,
        sidecar => sidecar,
    }
}

/// Makes the labels of all rows distinct: by what differs in their set-ups, else by their paths.
pub fn make_distinct(models: &mut [ComparedModel]) {
    let names: Vec<String> = models.iter().map(|model| model.label.clone()).collect();
    for i in 0..models.len() {
        let Some(name) = names.get(i) else { continue };
        let alike: Vec<&ComparedModel> = models
            .iter()
            .zip(&names)
            .filter(|(_, other)| *other == name)
            .map(|(model, _)| model)
            .collect();
        if alike.len() < 2 {
            continue;
        }
        let tells_apart = |of: &&SettingValue| {
            let mut all: Vec<_> = alike.iter().map(|model| of(&model.set_up)).collect();
            all.sort();
            all.dedup();
            all.len() == alike.len() && all.iter().all(Option::is_some)
        };
        let distinction = DISTINCTIONS.iter().find(tells_apart);
        if let Some(model) = models.get_mut(i) {
            let what = distinction.and_then(|of| of(&model.set_up));
            let what = what.unwrap_or_else(|| path_of(model).to_owned());
            model.label = format!("{name} ({what})");
        }
    }
    // A label that was given may be what another was made into.
    for i in 0..models.len() {
        let is_taken = |model: &ComparedModel| {
            let same = models.iter().filter(|other| other.label == model.label);
            same.count() > 1
        };
        let taken = models.get(i).is_some_and(is_taken);
        if let Some(model) = models.get_mut(i).filter(|_| taken) {
            model.label = path_of(model).to_owned();
        }
    }
}
