//! What bounds the node now: `GET /v1/doctor[?interval=SECONDS]`.
//!
//! Owns: taking two samples and having them judged. Never does: change anything; judge by itself ([`diagnose`] does, and
//! knows no clock).

pub mod diagnose;
pub mod sample;

use std::{collections::HashMap, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
    http::StatusCode,
};
use serde::{Deserialize, Serialize};

use super::AdminState;
use diagnose::diagnose;
use sample::Sample;

/// Seconds between the samples, unless told.
pub const INTERVAL: f64 = 2.0;
/// At least: shorter, chance decides.
const INTERVAL_MIN: f64 = 0.5;
/// At most: a request is not to hang for long.
const INTERVAL_MAX: f64 = 60.0;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something to know.
    Info,
    /// It bounds the node, or soon will.
    Warning,
    /// Something fails.
    Critical,
}

/// Something that bounds the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, in short: a word that does not change.
    pub what: String,
    /// What was seen.
    pub why: String,
    /// What would help.
    pub advice: String,
}

/// What the node did between the samples, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Seconds between the samples.
    pub seconds: f64,
    /// NFS operations.
    pub operations: f64,
    /// READs among them.
    pub reads: f64,
    /// GETATTR, LOOKUP and ACCESS among them.
    pub metadata: f64,
    /// Messages to all sources.
    pub source_calls: f64,
    /// Bytes read from all sources.
    pub source_read_bytes: f64,
    /// Bytes sent to clients.
    pub sent_bytes: f64,
    /// Share of chunks that were in RAM or on NVMe; `None` if none was asked for.
    pub hit_ratio: Option<f64>,
    /// Cores the process used.
    pub cores_used: f64,
    /// Cores it may use.
    pub cores: f64,
    /// Bytes of memory it has.
    pub resident_bytes: u64,
}

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The worst first; empty if nothing bounds the node.
    pub findings: Vec<Finding>,
    /// What it did meanwhile.
    pub figures: Figures,
}

/// Answers.
pub async fn answer(
    State(state): State<AdminState>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Diagnosis>, (StatusCode, String)> {
    let interval = query.get("interval").map_or(Ok(INTERVAL), |text| text.parse::<f64>());
    let interval = interval.ok().filter(|seconds| (INTERVAL_MIN..=INTERVAL_MAX).contains(seconds));
    let wrong = || (StatusCode::BAD_REQUEST, format!("interval: expected {INTERVAL_MIN} to {INTERVAL_MAX} seconds\n"));
    let interval = Duration::from_secs_f64(interval.ok_or_else(wrong)?);
    let before = Sample::take(&state);
    tokio::time::sleep(interval).await;
    let after = Sample::take(&state);
    let (findings, figures) = (diagnose(&before, &after), diagnose::figures(&before, &after));
    Ok(Json(Diagnosis { findings, figures }))
}
