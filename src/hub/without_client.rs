//! The place of the client in a program that was built without the feature `hub`: the cache alone is left.

use std::io;
use std::time::Duration;

use anyhow::Result;

use super::Fault;

pub struct Client;

pub struct Body {
    pub from: u64,
    pub reader: io::Empty,
}

impl Client {
    pub fn new(_: &str, _: Option<String>, _: Duration) -> Result<Self> {
        Ok(Self)
    }

    pub fn json<T>(&self, _: &str, _: &str) -> Result<(T, Option<String>), Fault> {
        Err(left_out())
    }

    pub fn body(&self, _: &str, _: &str, _: u64) -> Result<Body, Fault> {
        Err(left_out())
    }
}

fn left_out() -> Fault {
    Fault::Unreachable(
        "this kl was built without the feature 'hub', which loads models by name".to_owned(),
    )
}
