//! What operators do with the cache, over HTTP: `POST /v1/{warm,check,evict,pin,unpin}`.
//!
//! Owns: reading requests, and the stream of JSON lines that answers one: progress twice a second, rows, one report at the
//! end. Never does: decide what becomes of a file.
//!
//! Invariants:
//! * Whoever goes away ends what he asked for.
//! * A web page cannot have a browser ask for anything here: what changes something needs a header that a form cannot send
//!   and that another site's script may not, and browsers say where a request comes from.
//! * The port knows nobody: whoever reaches it may do all of this. It listens on loopback unless told otherwise.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use forebay_proto::{
    rpc,
    xdr::{List, Opaque},
};
use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::AdminState;
use crate::{
    files::{Caller, Export},
    source::{
        Credentials, Source,
        cached::{
            CachedSource,
            manage::{
                FileRow, Target,
                tally::{Failure, Tally, Totals},
                warm::{PARALLEL, PARALLEL_MAX, WarmOptions},
            },
        },
    },
};

/// What a request must carry.
pub const HEADER: &str = "x-forebay";
/// Paths of one request.
pub const PATHS_MAX: usize = 1024;
/// Requests worked on at once: each may have a whole tree on its way.
const JOBS_MAX: usize = 4;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_millis(500);
/// Lines that wait for a slow reader.
const LINES: usize = 256;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Fetch what is not here.
    Warm,
    /// Say how much is here.
    Check,
    /// Let it go.
    Evict,
    /// Keep it whatever else is wanted, and fetch it unless told not to.
    Pin,
    /// Treat it as all else.
    Unpin,
}

impl Verb {
    /// All.
    pub const ALL: [Self; 5] = [Self::Warm, Self::Check, Self::Evict, Self::Pin, Self::Unpin];

    /// As in the path.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Check => "check",
            Self::Evict => "evict",
            Self::Pin => "pin",
            Self::Unpin => "unpin",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// `/export/path/inside`, as clients see it.
    pub paths: Vec<String>,
    /// Only files whose path below theirs matches this.
    pub r#match: Option<String>,
    /// Calls to the source under way at once; 1 to 256, 16 if absent.
    pub parallel: Option<usize>,
    /// `warm`: pin as well.
    pub pin: bool,
    /// `pin`: do not fetch.
    pub no_warm: bool,
    /// `check`: a line for each file.
    pub files: bool,
}

/// A line of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// How far it is.
    Progress {
        /// Sums so far.
        totals: Totals,
        /// Where it is.
        current: String,
    },
    /// `check` with `files`: one file.
    File(FileRow),
    /// One of the paths is done.
    Path {
        /// As it was given.
        path: String,
        /// What was found and done below it.
        totals: Totals,
    },
    /// Everything is done. The last line.
    Report(Report),
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Sums.
    pub totals: Totals,
    /// What failed, the first hundred.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub seconds: f64,
    /// Bytes fetched from the source a second.
    pub rate: f64,
    /// Chunks that the cache let go meanwhile for want of room.
    pub evicted_chunks: u64,
}

/// Why nothing is begun.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1 + "\n").into_response()
    }
}

#[derive(Clone)]
struct Manage {
    admin: AdminState,
    jobs: Arc<Semaphore>,
    stop: CancellationToken,
}

/// One of the paths, its export found.
struct Wanted {
    source: Arc<CachedSource>,
    user: Credentials,
    label: String,
    /// Below the export's root.
    inside: String,
}

/// The routes. What is under way ends with `stop`.
pub fn routes(admin: AdminState, stop: CancellationToken) -> Router {
    let manage = Manage { admin, jobs: Arc::new(Semaphore::new(JOBS_MAX)), stop };
    let route = |router: Router<Manage>, verb: Verb| {
        let handler = move |state, headers, body| answer(verb, state, headers, body);
        router.route(&format!("/v1/{}", verb.name()), post(handler))
    };
    Verb::ALL.into_iter().fold(Router::new(), route).with_state(manage)
}

async fn answer(
    verb: Verb,
    State(manage): State<Manage>,
    headers: HeaderMap,
    Json(request): Json<Request>,
) -> Result<Response, Refusal> {
    let is_meant = headers.get(HEADER).is_some_and(|value| value == "1") && !headers.contains_key(header::ORIGIN);
    if !is_meant {
        return Err(Refusal(StatusCode::FORBIDDEN, "send the header `X-Forebay: 1`, and not from a web page".into()));
    }
    let pattern = request.r#match.as_deref().map(glob).transpose()?;
    if request.paths.is_empty() || request.paths.len() > PATHS_MAX {
        return Err(Refusal(StatusCode::BAD_REQUEST, format!("expected 1 to {PATHS_MAX} paths")));
    }
    let parallel = request.parallel.unwrap_or(PARALLEL);
    if !(1..=PARALLEL_MAX).contains(&parallel) {
        return Err(Refusal(StatusCode::BAD_REQUEST, format!("parallel: expected 1 to {PARALLEL_MAX}")));
    }
    let exports = manage.admin.server.namespace.exports();
    let wanted = request.paths.iter().map(|path| wanted(exports, path)).collect::<Result<Vec<_>, _>>()?;
    let pins = verb == Verb::Pin || (verb == Verb::Warm && request.pin);
    if pins && wanted.iter().any(|wanted| wanted.source.cache().stats().nvme.capacity == 0) {
        let why = "nothing can be pinned: this node has no cache store (start it with --cache DIR), or it failed";
        return Err(Refusal(StatusCode::CONFLICT, why.into()));
    }
    let busy = || Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("busy: {JOBS_MAX} such commands run already"));
    let permit = manage.jobs.clone().try_acquire_owned().map_err(|_| busy())?;
    let (lines, reader) = mpsc::channel(LINES);
    let options = WarmOptions { parallel, pin: pins };
    let job = Job { verb, request, wanted, pattern, options, lines };
    tokio::spawn(run(job, manage.stop, permit));
    let stream = futures_util::stream::unfold(reader, |mut reader: mpsc::Receiver<Line>| async move {
        let line = reader.recv().await?;
        Some((serde_json::to_vec(&line).map(|line| Bytes::from([&line[..], b"\n"].concat())), reader))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response())
}

fn glob(text: &str) -> Result<GlobMatcher, Refusal> {
    let glob = GlobBuilder::new(text).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| Refusal(StatusCode::BAD_REQUEST, format!("match: {error}")))
}

/// The export a path is in: the longest name that it begins with.
fn wanted(exports: &[Arc<Export>], path: &str) -> Result<Wanted, Refusal> {
    if !path.starts_with('/') {
        return Err(Refusal(
            StatusCode::BAD_REQUEST,
            format!("{path}: expected a path that begins with an export's name, as /data/models"),
        ));
    }
    let inside = |export: &Export| {
        let rest = path.strip_prefix(export.name.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
    };
    let found = exports.iter().filter_map(|export| Some((export, inside(export)?)));
    let Some((export, inside)) = found.max_by_key(|(export, _)| export.name.len()) else {
        let names: Vec<&str> = exports.iter().map(|export| export.name.as_str()).collect();
        let why = format!("{path} is in no export; there are: {}", names.join(" "));
        return Err(Refusal(StatusCode::NOT_FOUND, why));
    };
    let Source::Cached(source) = &export.source else {
        let why = format!("{path}: {} is a directory of this node ({}), which needs no cache", export.name, export.url);
        return Err(Refusal(StatusCode::CONFLICT, why));
    };
    Ok(Wanted { source: source.clone(), user: superuser(export), label: path.into(), inside })
}

/// root, as the export lets root in.
fn superuser(export: &Export) -> Credentials {
    let root = rpc::AuthSys { stamp: 0, machine_name: Opaque::default(), uid: 0, gid: 0, groups: List::default() };
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    export.credentials(&Caller { address, credential: rpc::Credential::Sys(root) })
}

struct Job {
    verb: Verb,
    request: Request,
    wanted: Vec<Wanted>,
    pattern: Option<GlobMatcher>,
    options: WarmOptions,
    lines: mpsc::Sender<Line>,
}

/// Works until it is done, the reader is gone, or the node stops.
async fn run(job: Job, stop: CancellationToken, _permit: OwnedSemaphorePermit) {
    tokio::select! {
        () = report(&job) => {}
        () = job.lines.closed() => tracing::info!(verb = job.verb.name(), "cancelled: whoever asked is gone"),
        () = stop.cancelled() => {}
    }
}

async fn report(job: &Job) {
    let (tally, began) = (Tally::default(), Instant::now());
    // One cache serves all exports.
    let evicted = || {
        let stats = job.wanted.first().map(|wanted| wanted.source.cache().stats()).unwrap_or_default();
        if stats.nvme.capacity > 0 { stats.nvme.evictions } else { stats.ram.evictions }
    };
    let evicted_before = evicted();
    let mut ticks = tokio::time::interval(PROGRESS);
    let mut work = pin!(all(job, &tally));
    loop {
        tokio::select! {
            () = &mut work => break,
            _ = ticks.tick() => {
                let (totals, current) = tally.now();
                // A reader that is slow misses some.
                let _ = job.lines.try_send(Line::Progress { totals, current });
            }
        }
    }
    let (totals, seconds) = (tally.now().0, began.elapsed().as_secs_f64());
    let rate = totals.fetched_bytes as f64 / seconds.max(0.001);
    let evicted_chunks = evicted().saturating_sub(evicted_before);
    let report = Report { totals, failures: tally.failures(), seconds, rate, evicted_chunks };
    let _ = job.lines.send(Line::Report(report)).await;
}

/// One path after the other.
async fn all(job: &Job, tally: &Tally) {
    for wanted in &job.wanted {
        let before = tally.now().0;
        match target(job, wanted).await {
            Ok(target) => one(job, &target, tally).await,
            Err(why) => tally.fail(wanted.label.clone(), why),
        }
        let totals = tally.now().0.since(&before);
        if job.lines.send(Line::Path { path: wanted.label.clone(), totals }).await.is_err() {
            return;
        }
    }
    if matches!(job.verb, Verb::Warm | Verb::Pin | Verb::Unpin)
        && let Some(wanted) = job.wanted.first()
    {
        // What was fetched and pinned survives a restart once this is answered. A store that fails is in its metrics.
        let _ = wanted.source.cache().flush().await;
    }
}

async fn target(job: &Job, wanted: &Wanted) -> Result<Target, String> {
    let found = wanted.source.resolve_path(&wanted.user, wanted.inside.as_bytes()).await;
    let (top, above) = found.map_err(|error| error.to_string())?;
    let name = wanted.inside.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    Ok(Target {
        source: wanted.source.clone(),
        user: wanted.user.clone(),
        top,
        above,
        name: Bytes::copy_from_slice(name.as_bytes()),
        label: wanted.label.clone(),
        pattern: job.pattern.clone(),
    })
}

async fn one(job: &Job, target: &Target, tally: &Tally) {
    match job.verb {
        Verb::Warm => target.warm(&job.options, tally).await,
        Verb::Pin if !job.request.no_warm => target.warm(&job.options, tally).await,
        Verb::Pin => target.pin(true, tally).await,
        Verb::Unpin => target.pin(false, tally).await,
        Verb::Evict => target.evict(tally).await,
        Verb::Check if job.request.files => {
            let (rows, mut files) = mpsc::channel(LINES);
            let told = async {
                while let Some(row) = files.recv().await {
                    if job.lines.send(Line::File(row)).await.is_err() {
                        return;
                    }
                }
            };
            let check = async {
                // The sender goes with the check, and that ends the telling.
                let rows = rows;
                target.check(tally, Some(&rows)).await;
            };
            tokio::join!(check, told);
        }
        Verb::Check => target.check(tally, None).await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn patterns_keep_to_one_level_unless_they_say_otherwise() {
        for (pattern, path, matches) in [
            ("*.bin", "a.bin", true),
            ("*.bin", "d/a.bin", false),
            ("**/*.bin", "a.bin", true),
            ("**/*.bin", "d/e/a.bin", true),
            ("step-[0-9]?/*", "step-42/x", true),
            ("step-[0-9]?/*", "step-4/x", false),
            ("d/**", "d/e/f", true),
        ] {
            let matcher = glob(pattern).ok().unwrap();
            assert_eq!(matcher.is_match(path), matches, "{pattern} {path}");
        }
        assert!(glob("[").is_err());
    }

    #[test]
    fn lines_read_back_as_they_were_written() {
        let totals = Totals { files: 3, ..Totals::default() };
        let row = FileRow { path: "/x/f".into(), size: 9, ram_bytes: 9, nvme_bytes: 0 };
        for line in [
            Line::Progress { totals, current: "/x/d".into() },
            Line::File(row),
            Line::Path { path: "/x".into(), totals },
            Line::Report(Report { totals, seconds: 1.5, ..Report::default() }),
        ] {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line, "{text}");
        }
    }
}
