//! What operators do with the cache, asked of a node over its admin port, in front of a directory that counts what it is
//! asked.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]
#![allow(missing_docs, reason = "names say it")]

#[macro_use]
#[allow(unused_macros, unused_imports, reason = "each test file uses what it needs")]
mod common;

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::Path,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_meta::state::Identity;
use forebay_node::{
    admin::{
        self, AdminState,
        cache::{HEADER, Line, Report},
    },
    cache::{Cache, CacheOptions, StoreOptions},
    config::CacheConfig,
    source::{
        Credentials, Source,
        budget::{Budget, BudgetMode},
        cached::{
            CachedOptions, CachedSource, Consistency, Policy,
            manage::{
                Target,
                tally::{Tally, Totals},
                warm::WarmOptions,
            },
        },
        local::{LocalOptions, LocalSource},
        metered::MeteredSource,
        network::Network,
    },
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use common::{Lab, Running, ram_cache, upstream::Upstream};

const MIB: usize = 1 << 20;

/// A node whose export `/data` is cached, and its admin port.
struct Desk {
    lab: Lab,
    running: Running,
    admin: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Desk {
    async fn new() -> Self {
        Self::with(ram_cache()).await
    }

    async fn with(cache: Arc<Cache>) -> Self {
        let options = CachedOptions { policy: Policy::preset(Consistency::CloseToOpen), ..CachedOptions::default() };
        let lab = Lab::default().cached(options);
        let running = lab.start_with(cache).await;
        Self::around(lab, running).await
    }

    async fn around(lab: Lab, running: Running) -> Self {
        let identity = Identity { cluster: "test".into(), handle_key: *b"a fixed test key" };
        let config = CacheConfig { ram: 1 << 20, store: None, store_bytes: None };
        let network = Arc::new(Network::open(&[], &config, &identity, None).await.unwrap());
        let state = AdminState {
            cluster: None,
            server: running.server.clone(),
            serving: Arc::new(AtomicBool::new(true)),
            metrics: metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle(),
            network,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (admin, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        tokio::spawn(admin::serve(listener, state, stop.clone()));
        Self { lab, running, admin, stop }
    }

    fn upstream(&self) -> &Arc<Upstream> {
        &self.running.upstreams[0]
    }

    fn cached(&self) -> Arc<CachedSource> {
        match &self.running.server.namespace.exports()[0].source {
            Source::Cached(cached) => cached.clone(),
            Source::Local(_) => panic!("not cached"),
        }
    }

    fn put(&self, name: &str, data: impl AsRef<[u8]>) {
        let path = self.lab.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, data).unwrap();
    }

    /// Until time stamps can tell every later change.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(2100)).await;
    }

    /// Asks for something; the status and what came.
    async fn post(&self, verb: &str, body: serde_json::Value) -> (i32, String) {
        let url = format!("http://{}/v1/{verb}", self.admin);
        let send = move || {
            let request = minreq::post(url).with_header(HEADER, "1").with_header("Content-Type", "application/json");
            let reply = request.with_body(body.to_string()).send().unwrap();
            (reply.status_code, reply.as_str().unwrap().to_owned())
        };
        tokio::task::spawn_blocking(send).await.unwrap()
    }

    /// Asks for something that is begun; the lines but progress, and the report.
    async fn lines(&self, verb: &str, body: serde_json::Value) -> (Vec<Line>, Report) {
        let (status, text) = self.post(verb, body).await;
        assert_eq!(status, 200, "{text}");
        let mut lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let Some(Line::Report(report)) = lines.pop() else { panic!("no report at the end of {text}") };
        lines.retain(|line| !matches!(line, Line::Progress { .. }));
        (lines, report)
    }

    async fn done(&self, verb: &str, body: serde_json::Value) -> Totals {
        let (_, report) = self.lines(verb, body).await;
        assert_eq!(report.failures, [], "{report:?}");
        report.totals
    }

    /// OPEN and READ of all of a file.
    async fn cat(&self, path: &str) -> Vec<u8> {
        let (cached, who) = (self.cached(), superuser());
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (dir, _) = cached.resolve_path(&who, dir.as_bytes()).await.unwrap();
        let (file, _) = cached.lookup_to_open(&who, &dir, name.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        loop {
            let (part, eof) = cached.read(&who, &file, all.len() as u64, MIB).await.unwrap();
            all.extend_from_slice(&part);
            if eof {
                return all;
            }
        }
    }

    fn read_bytes(&self) -> u64 {
        self.upstream().read_bytes.load(Ordering::Relaxed)
    }

    /// The command itself, against this node.
    async fn forebay(&self, arguments: &[&str]) -> Output {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(arguments).args(["--admin", &self.admin.to_string()]);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

fn superuser() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Arc::from([]) }
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|place| (seed + place * 7 + place / 251) as u8).collect()
}

/// A cache with this much RAM and a store of 64 MiB.
fn with_store(dir: &Path, ram_bytes: u64) -> Arc<Cache> {
    let store = StoreOptions { bytes: Some(64 << 20), ..StoreOptions::at(dir) };
    Cache::open(CacheOptions { store: Some(store), ..CacheOptions::ram(ram_bytes) }).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn small_files_come_many_at_once_and_what_was_warmed_is_never_fetched_again() {
    let desk = Desk::new().await;
    for number in 0..300 {
        desk.put(&format!("d/small-{number}"), pattern(number, 2000 + number));
    }
    desk.put("d/large", pattern(7, 5 * MIB + 4321));
    desk.settle().await;
    desk.upstream().take_calls();
    let totals = desk.done("warm", json!({ "paths": ["/data/d"] })).await;
    let calls = desk.upstream().take_calls();
    println!("{calls:?}");
    assert!(calls["look_many"] <= 4, "{calls:?}");
    assert_eq!(calls["read"], 6, "{calls:?}");
    assert!(calls.values().sum::<u64>() <= 16, "{calls:?}");
    let bytes = (0..300).map(|number| 2000 + number).sum::<u64>() + 5 * (1 << 20) + 4321;
    assert_eq!((totals.files, totals.fetched_files, totals.fetched_bytes), (301, 301, bytes));
    assert_eq!((totals.done_files, totals.done_bytes, totals.bytes), (301, bytes, bytes));
    let read = desk.read_bytes();
    assert_eq!(read, bytes, "every byte leaves the source once");
    for number in (0..300).step_by(17) {
        assert_eq!(desk.cat(&format!("d/small-{number}")).await, pattern(number, 2000 + number));
    }
    assert_eq!(desk.cat("d/large").await, pattern(7, 5 * MIB + 4321));
    assert_eq!(desk.read_bytes(), read);
    let again = desk.done("warm", json!({ "paths": ["/data/d"] })).await;
    assert_eq!((again.present_files, again.present_bytes, again.fetched_bytes), (301, bytes, 0));
    assert_eq!(desk.read_bytes(), read);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_at_the_source_is_fetched_anew_and_the_rest_is_not() {
    let desk = Desk::new().await;
    for number in 0..20 {
        desk.put(&format!("f{number}"), pattern(number, 10_000));
    }
    desk.put("large", pattern(1, 3 * MIB));
    desk.settle().await;
    desk.done("warm", json!({ "paths": ["/data"] })).await;
    desk.put("f3", pattern(99, 10_000));
    desk.put("large", pattern(2, 3 * MIB));
    // Within the window in which the policy believes what it knows, and before the source's clock has moved on.
    let totals = desk.done("warm", json!({ "paths": ["/data"] })).await;
    assert_eq!((totals.present_files, totals.fetched_files), (19, 2), "{totals:?}");
    let read = desk.read_bytes();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(desk.cat("f3").await, pattern(99, 10_000));
    assert_eq!(desk.cat("large").await, pattern(2, 3 * MIB));
    assert_eq!(desk.read_bytes(), read, "though it had just been written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_chooses_and_links_are_not_followed() {
    let desk = Desk::new().await;
    for name in ["a.bin", "a.txt", "d/b.bin", "d/e/c.bin", "d/e/c.txt"] {
        desk.put(name, name);
    }
    std::os::unix::fs::symlink("..", desk.lab.path("d/up")).unwrap();
    std::os::unix::fs::symlink("/etc", desk.lab.path("d/out")).unwrap();
    desk.settle().await;
    for (glob, paths, files) in [
        (Some("*.bin"), vec!["/data"], 1),
        (Some("**/*.bin"), vec!["/data"], 3),
        (Some("**/*.bin"), vec!["/data/d"], 2),
        (Some("[a-c].t?t"), vec!["/data", "/data/d/e/"], 2),
        (Some("*.txt"), vec!["/data/a.bin"], 0),
        (None, vec!["/data/a.bin", "/data/d/./e"], 3),
        (None, vec!["/data"], 5),
    ] {
        let mut body = json!({ "paths": paths });
        if let Some(glob) = glob {
            body["match"] = json!(glob);
        }
        let totals = desk.done("check", body).await;
        assert_eq!(totals.files, files, "{glob:?} {paths:?}");
    }
    assert_eq!(desk.done("check", json!({ "paths": ["/data"] })).await.others, 2);
    for (path, said) in [
        ("/data/d/up/a.bin", "/d/up is a symbolic link"),
        ("/data/d/out", "/d/out is a symbolic link"),
        ("/data/../data", "`..`"),
        ("/data/missing/x", "/missing: No such file"),
        ("/data/a.bin/x", "Not a directory"),
    ] {
        let (_, report) = desk.lines("warm", json!({ "paths": [path] })).await;
        assert_eq!(report.totals.failed, 1);
        assert!(report.failures[0].reason.contains(said), "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_vanish_while_they_are_warmed_are_no_failure() {
    let desk = Desk::new().await;
    for number in 0..50 {
        desk.put(&format!("d/f{number}"), pattern(number, 5000));
    }
    desk.put("d/large", pattern(1, 3 * MIB));
    desk.settle().await;
    desk.upstream().take_calls();
    desk.upstream().delay_us.store(300_000, Ordering::Relaxed);
    let (report, ()) = tokio::join!(desk.lines("warm", json!({ "paths": ["/data"] })), async {
        let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
        while !calls.contains_key("look_many") || !calls.contains_key("look") {
            calls.extend(desk.upstream().take_calls());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // They have been listed, and were asked for; the answer has not been made up yet.
        for name in ["d/f3", "d/f17", "d/large"] {
            std::fs::remove_file(desk.lab.path(name)).unwrap();
        }
    });
    let totals = report.1.totals;
    assert_eq!((totals.files, totals.vanished, totals.failed, totals.fetched_files), (51, 3, 0, 48), "{totals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deep_and_wide_tree_is_walked_to_its_end() {
    let desk = Desk::new().await;
    let deep: String = (0..100).map(|level| format!("l{level}/")).collect();
    desk.put(&format!("deep/{deep}bottom"), "x");
    for number in 0..5000 {
        desk.put(&format!("wide/f{number}"), "");
    }
    for number in 0..300 {
        desk.put(&format!("many/d{number}/e/f"), "12");
    }
    let (lines, report) = desk.lines("check", json!({ "paths": ["/data/deep", "/data"], "files": true })).await;
    assert_eq!(report.failures, []);
    let mut paths: Vec<&str> = lines
        .iter()
        .filter_map(|line| if let Line::File(file) = line { Some(file.path.as_str()) } else { None })
        .collect();
    assert_eq!(paths.len(), 1 + 5301);
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 5301, "each once");
    assert!(paths.contains(&format!("/data/deep/{deep}bottom").as_str()));
    let Some(Line::Path { path, totals }) = lines.last() else { panic!("{:?}", lines.last()) };
    assert_eq!(
        (path.as_str(), totals.files, totals.bytes, totals.directories),
        ("/data", 5301, 601, 1 + 101 + 1 + 601)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_which_tier_has_how_much_and_reads_nothing() {
    let home = tempfile::tempdir().unwrap();
    let desk = Desk::with(with_store(home.path(), 3 << 20)).await;
    for number in 0..10 {
        desk.put(&format!("warm/f{number}"), pattern(number, MIB));
    }
    desk.put("warm/large", pattern(3, 2 * MIB + 100));
    desk.put("cold/f", pattern(3, 50_000));
    desk.settle().await;
    desk.done("warm", json!({ "paths": ["/data/warm"] })).await;
    desk.cached().cache().flush().await.unwrap();
    let read = desk.read_bytes();
    let (lines, report) = desk.lines("check", json!({ "paths": ["/data/warm", "/data/cold"] })).await;
    let all = 12 * (1 << 20) + 100;
    let [Line::Path { totals: warm, .. }, Line::Path { totals: cold, .. }] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((warm.files, warm.bytes, warm.ram_bytes + warm.nvme_bytes), (11, all, all), "{warm:?}");
    assert!(warm.ram_bytes > 0 && warm.ram_bytes <= 3 << 20, "{warm:?}");
    assert_eq!((cold.files, cold.bytes, cold.ram_bytes, cold.nvme_bytes), (1, 50_000, 0, 0));
    assert_eq!(report.totals.bytes, all + 50_000);
    assert_eq!(desk.read_bytes(), read);
    desk.upstream().take_calls();
    desk.done("check", json!({ "paths": ["/data/warm"] })).await;
    assert_eq!(desk.upstream().take_calls(), BTreeMap::new(), "what is known is not asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_evicted_comes_from_the_source_again() {
    let home = tempfile::tempdir().unwrap();
    let desk = Desk::with(with_store(home.path(), 64 << 20)).await;
    for name in ["d/a", "d/b", "d/large", "other"] {
        desk.put(name, pattern(name.len(), if name == "d/large" { 3 * MIB } else { 20_000 }));
    }
    desk.settle().await;
    desk.done("warm", json!({ "paths": ["/data"] })).await;
    let totals = desk.done("evict", json!({ "paths": ["/data/d"] })).await;
    assert_eq!((totals.files, totals.removed_chunks, totals.removed_bytes), (3, 5, 3 * (1 << 20) + 40_000));
    let left = desk.done("check", json!({ "paths": ["/data"] })).await;
    assert_eq!(left.ram_bytes + left.nvme_bytes, 20_000, "`other` stays");
    desk.done("evict", json!({ "paths": ["/data/d"] })).await;
    let (read, _) = (desk.read_bytes(), desk.upstream().take_calls());
    assert_eq!(desk.cat("d/large").await, pattern(7, 3 * MIB));
    assert_eq!(desk.cat("d/a").await, pattern(3, 20_000));
    let came = desk.read_bytes() - read;
    // The OPEN of a file not known to be large brings its beginning along.
    let beginning = 32 << 10;
    assert_eq!(came, 3 * (1 << 20) + 20_000 + beginning);
    let calls = desk.upstream().take_calls();
    assert!(calls.contains_key("lookup"), "names are asked for again: {calls:?}");
    let read = desk.read_bytes();
    let one = desk.done("evict", json!({ "paths": ["/data/other"] })).await;
    assert_eq!((one.files, one.removed_chunks), (1, 1));
    assert_eq!(desk.cat("other").await, pattern(5, 20_000));
    assert_eq!(desk.read_bytes() - read, 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pinned_stays_under_pressure_and_too_much_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let desk = Desk::with(with_store(home.path(), 2 << 20)).await;
    for number in 0..5 {
        desk.put(&format!("pinned/f{number}"), pattern(number, MIB));
    }
    for number in 0..100 {
        desk.put(&format!("fill/f{number}"), pattern(number, MIB));
    }
    desk.settle().await;
    let totals = desk.done("pin", json!({ "paths": ["/data/pinned"] })).await;
    assert_eq!((totals.pinned_files, totals.fetched_bytes), (5, 5 << 20), "{totals:?}");
    let (_, report) = desk.lines("warm", json!({ "paths": ["/data/fill"] })).await;
    assert!(report.evicted_chunks > 30, "{report:?}");
    let left = desk.done("check", json!({ "paths": ["/data/pinned"] })).await;
    assert_eq!(left.ram_bytes + left.nvme_bytes, 5 << 20, "{left:?}");
    // 80 % of what the store surely holds is less than this.
    let (_, report) = desk.lines("warm", json!({ "paths": ["/data/fill"], "pin": true })).await;
    assert!(report.totals.failed > 30 && report.totals.pinned_files > 10, "{report:?}");
    assert!(report.failures[0].reason.starts_with("not pinned: "), "{report:?}");
    assert_eq!(desk.done("unpin", json!({ "paths": ["/data"] })).await.pinned_files, 105);
    let pinned = desk.cached().cache().stats().pinned_bytes;
    assert_eq!(pinned, 0);
    let (_, report) = desk.lines("pin", json!({ "paths": ["/data/pinned"], "no_warm": true })).await;
    assert_eq!((report.totals.pinned_files, report.totals.fetched_bytes), (5, 0), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_are_refused_with_what_would() {
    let desk = Desk::new().await;
    for (verb, body, status, said) in [
        ("warm", json!({ "paths": ["/nope/x"] }), 404, "/nope/x is in no export; there are: /data"),
        ("warm", json!({ "paths": ["/dataset"] }), 404, "there are: /data"),
        ("warm", json!({ "paths": ["data"] }), 400, "expected a path that begins with an export's name"),
        ("warm", json!({ "paths": [] }), 400, "expected 1 to 1024 paths"),
        ("check", json!({ "paths": ["/data"], "match": "[" }), 400, "match: "),
        ("warm", json!({ "paths": ["/data"], "parallel": 0 }), 400, "parallel: expected 1 to 256"),
        ("pin", json!({ "paths": ["/data"] }), 409, "no cache store"),
        ("warm", json!({ "paths": ["/data"], "pin": true }), 409, "no cache store"),
        ("warm", json!({ "paths": ["/data"], "mtach": "x" }), 422, "unknown field `mtach`"),
    ] {
        let (got, text) = desk.post(verb, body.clone()).await;
        assert_eq!(got, status, "{verb} {body}: {text}");
        assert!(text.contains(said), "{verb} {body}: {text}");
    }
    let local = Lab::default();
    let running = local.start().await;
    let desk = Desk::around(local, running).await;
    let (status, text) = desk.post("warm", json!({ "paths": ["/data"] })).await;
    assert_eq!(status, 409);
    assert!(text.contains("is a directory of this node") && text.contains("needs no cache"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_cannot_have_a_browser_ask() {
    let desk = Desk::new().await;
    let url = format!("http://{}/v1/evict", desk.admin);
    let body = json!({ "paths": ["/data"] }).to_string();
    let send = |headers: &'static [(&'static str, &'static str)]| {
        let (url, body) = (url.clone(), body.clone());
        let send = move || {
            let request =
                headers.iter().fold(minreq::post(url), |request, (name, value)| request.with_header(*name, *value));
            request.with_body(body).send().unwrap().status_code
        };
        tokio::task::spawn_blocking(send)
    };
    const JSON: (&str, &str) = ("Content-Type", "application/json");
    assert_eq!(send(&[JSON]).await.unwrap(), 403);
    assert_eq!(send(&[("X-Forebay", "1"), JSON, ("Origin", "http://127.0.0.1:9049")]).await.unwrap(), 403);
    assert_eq!(send(&[("X-Forebay", "1"), ("Content-Type", "text/plain")]).await.unwrap(), 415);
    assert_eq!(send(&[("X-Forebay", "1"), JSON]).await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_ends_when_whoever_asked_goes_away() {
    let desk = Desk::new().await;
    for number in 0..200 {
        desk.put(&format!("f{number}"), pattern(number, 300_000));
    }
    desk.settle().await;
    desk.upstream().delay_us.store(50_000, Ordering::Relaxed);
    let body = json!({ "paths": ["/data"], "parallel": 2 }).to_string();
    let head = format!(
        "POST /v1/warm HTTP/1.1\r\nHost: x\r\nX-Forebay: 1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let admin = desk.admin;
    let began = tokio::task::spawn_blocking(move || {
        let mut connection = std::net::TcpStream::connect(admin).unwrap();
        connection.write_all((head + &body).as_bytes()).unwrap();
        let mut some = [0; 64];
        assert!(connection.read(&mut some).unwrap() > 0);
        std::thread::sleep(Duration::from_millis(700));
        // Gone.
        Instant::now()
    });
    let gone = began.await.unwrap();
    assert!(desk.upstream().take_calls()["read"] > 5);
    let mut idle = 0;
    while idle < 10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        idle = if desk.upstream().take_calls().is_empty() { idle + 1 } else { 0 };
        assert!(gone.elapsed() < Duration::from_secs(4), "still at work");
    }
    let read = desk.read_bytes();
    assert!(read < 200 * 300_000 / 2, "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_does_not_answer_for_a_while_is_waited_for() {
    let desk = Desk::new().await;
    for number in 0..40 {
        desk.put(&format!("f{number}"), pattern(number, 400_000));
    }
    desk.settle().await;
    desk.cached().root(&superuser()).await.unwrap();
    desk.upstream().delay_us.store(20_000, Ordering::Relaxed);
    let (report, ()) = tokio::join!(desk.lines("warm", json!({ "paths": ["/data"], "parallel": 4 })), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        desk.upstream().down.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        desk.upstream().down.store(false, Ordering::Relaxed);
    });
    let totals = report.1.totals;
    assert_eq!((totals.failed, totals.fetched_files), (0, 40), "{totals:?}");
    assert!(report.1.seconds > 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_spent_delays_what_is_warmed_and_drops_none_of_it() {
    let home = tempfile::tempdir().unwrap();
    for number in 0..30 {
        std::fs::write(home.path().join(format!("f{number}")), pattern(number, MIB)).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let upstream = Upstream::new(LocalSource::open(home.path(), LocalOptions::default()).unwrap());
    // Reads count a third: 10 MiB, of which all at once would have to wait for longer than a request may.
    let budget = Budget::new(BudgetMode::Provisioned { rate: MIB as f64 }, None, 0.0);
    let metered = MeteredSource::new(upstream.clone(), budget, "test");
    let cached = CachedSource::new(("/x", "test://x"), metered, ram_cache(), CachedOptions::default(), 1);
    let (top, above) = cached.resolve_path(&superuser(), b"").await.unwrap();
    let target =
        Target { source: cached, user: superuser(), top, above, name: Bytes::new(), label: "/x".into(), pattern: None };
    let (tally, began) = (Tally::default(), Instant::now());
    target.warm(&WarmOptions { parallel: 64, pin: false }, &tally).await;
    let (totals, seconds) = (tally.now().0, began.elapsed().as_secs_f64());
    assert_eq!(
        (totals.failed, totals.fetched_files, totals.fetched_bytes),
        (0, 30, 30 << 20),
        "{:?}",
        tally.failures()
    );
    assert_eq!(upstream.read_bytes.load(Ordering::Relaxed), 30 << 20);
    println!("{seconds:.1} s");
    assert!((7.0..20.0).contains(&seconds), "{seconds}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_say_what_they_did_and_exit_as_it_went() {
    let desk = Desk::new().await;
    for number in 0..3 {
        desk.put(&format!("d/f{number}"), pattern(number, MIB));
    }
    desk.settle().await;
    let warm = desk.forebay(&["warm", "/data/d", "--parallel", "4"]).await;
    assert!(warm.status.success(), "{}", stderr(&warm));
    assert!(
        stderr(&warm).contains("3 files, 3.0 MiB: 0 files (0 B) were cached, 3 files (3.0 MiB) fetched"),
        "{}",
        stderr(&warm)
    );
    let check = desk.forebay(&["check", "/data/d", "--files"]).await;
    let table = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(table.lines().filter(|line| line.contains("100%")).count(), 4, "{table}");
    let evict = desk.forebay(&["evict", "/data/d", "--match", "f[01]"]).await;
    assert!(stderr(&evict).contains("2 files: 2 chunks, 2.0 MiB let go"), "{}", stderr(&evict));
    let check = desk.forebay(&["check", "/data/d", "--json"]).await;
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    let last: Line = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(matches!(last, Line::Report(report) if report.totals.ram_bytes == 1 << 20), "{text}");
    let unknown = desk.forebay(&["warm", "/nope"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(stderr(&unknown).trim(), "forebay: /nope is in no export; there are: /data");
    let missing = desk.forebay(&["warm", "/data/d", "/data/missing"]).await;
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("/data/missing: /missing: No such file"), "{}", stderr(&missing));
    assert_eq!(desk.forebay(&["warm"]).await.status.code(), Some(2));
    let doctor = desk.forebay(&["doctor", "--interval", "0.5"]).await;
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.status.success() && text.ends_with("Nothing bounds this node: it is idle.\n"),
        "{text}{}",
        stderr(&doctor)
    );
}
