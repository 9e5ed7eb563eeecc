//! Lists the devices that a model can be computed on.

use anyhow::Result;

use super::settings::RunSettings;
use crate::engine::{Device, Engine};

/// The devices of a run with these settings, those of its servers too.
///
/// # Errors
/// A server that cannot be used, or if the engine cannot be started.
pub fn list_devices(settings: &RunSettings, engine: &impl Engine) -> Result<Vec<Device>> {
    engine.add_servers(&settings.rpc)?;
    Ok(engine.devices()?)
}
