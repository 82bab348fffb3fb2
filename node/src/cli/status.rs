//! `forebay status`.

use std::net::SocketAddr;

use anyhow::Context as _;

use crate::{
    admin::{Status, cluster::Members},
    config::DEFAULT_ADMIN,
};

const EXAMPLES: &str = "\
Examples:
  forebay status
  forebay status --admin 10.0.0.5:9049 --json";

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The node's admin address.
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Asks a node and prints what it says.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let url = format!("http://{}/status", arguments.admin);
    let asked = minreq::get(&url).with_timeout(5).send();
    let reply = asked.with_context(|| format!("no node answers on {}; is it running?", arguments.admin))?;
    anyhow::ensure!(reply.status_code == 200, "{} answered {} to /status", arguments.admin, reply.status_code);
    let text = reply.as_str()?;
    let status: Status = serde_json::from_str(text).context("the answer is not a node's status")?;
    if arguments.json {
        println!("{text}");
    } else {
        print!("{}", render(&status));
    }
    Ok(())
}

fn render(status: &Status) -> String {
    let grace = match (status.grace_seconds_left, status.grace_clients_expected) {
        (0, _) => "over".to_owned(),
        (seconds, clients) => format!("{seconds} s left, {clients} clients expected"),
    };
    let mut text = format!(
        "forebay {}  {}  up {}  start {}\ncluster  {}\nclients  {}  sessions {}  opens {}  locks {}\ngrace    {grace}\n",
        status.version,
        status.state,
        duration(status.uptime_seconds),
        status.epoch,
        status.cluster,
        status.clients,
        status.sessions,
        status.opens,
        status.locks,
    );
    let width = status.exports.iter().map(|export| export.name.len()).max().unwrap_or(0);
    for export in &status.exports {
        text += &format!("export   {:width$}  {}  {}\n", export.name, export.access, export.source);
    }
    if let Some(members) = &status.members {
        text += &render_members(members);
    }
    text
}

fn render_members(members: &Members) -> String {
    let leader = members.leader.map_or("nobody".to_owned(), |leader| format!("node {leader}"));
    let mut text = format!(
        "\n{}  this is node {}  leader {leader}  term {}  log {}  ring {} of {} nodes\n",
        members.name, members.me, members.term, members.applied, members.ring_epoch, members.ring_members,
    );
    text += "node  state     votes    lag  weight  lease    zone        nfs                    control\n";
    for node in &members.nodes {
        let lease = if node.lease_ms == 0 { "over".to_owned() } else { format!("{} ms", node.lease_ms) };
        let lag = node.lag.map_or("-".to_owned(), |lag| lag.to_string());
        text += &format!(
            "{:<4}  {:<8}  {:<5}  {lag:>5}  {:>6}  {lease:<7}  {:<10}  {:<21}  {}\n",
            node.node, node.state, node.role, node.weight, node.zone, node.nfs, node.control,
        );
    }
    text
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_readable() {
        let export = |name: &str| crate::admin::ExportStatus {
            name: name.into(),
            source: "file:///srv".into(),
            access: "rw".into(),
        };
        let status = Status {
            version: "1".into(),
            cluster: "c".into(),
            state: "serving".into(),
            epoch: 3,
            uptime_seconds: 600,
            clients: 2,
            sessions: 2,
            opens: 5,
            locks: 1,
            grace_seconds_left: 12,
            grace_clients_expected: 1,
            exports: vec![export("/a"), export("/longer")],
            members: Some(Members {
                name: "farm".into(),
                me: 2,
                leader: Some(1),
                term: 4,
                applied: 99,
                ring_epoch: 7,
                ring_members: 3,
                nodes: vec![crate::admin::cluster::Member {
                    node: 1,
                    state: "serving".into(),
                    role: "voter".into(),
                    lag: Some(0),
                    weight: 64,
                    lease_ms: 2_900,
                    zone: "a".into(),
                    nfs: "10.0.0.1:2049".into(),
                    control: "10.0.0.1:2051".into(),
                }],
            }),
        };
        let text = render(&status);
        assert!(text.contains("up 10 min") && text.contains("12 s left, 1 clients expected"), "{text}");
        assert!(text.contains("export   /a       rw  file:///srv"), "{text}");
        assert!(text.contains("farm  this is node 2  leader node 1  term 4"), "{text}");
        assert!(text.contains("1     serving   voter"), "{text}");
    }
}
