//! The lab itself: a guest says what its script said, and one that takes too long leaves nothing behind.

use anyhow::{Result, ensure};
use forebay_chaos::lab::kernel_client::KernelClient;
use forebay_chaos::lab::net::Net;
use std::fs;
use std::time::Duration;

#[test]
fn a_guest_runs_a_script_and_can_be_told_things() -> Result<()> {
    let net = Net::create()?;
    let value = "it's $HOME \"and\" `more`";
    let script = "echo \"value: $VALUE\"\nsame guess 1 2\nawait go\nrefused gone 'No such' cat /nothing\nfinish\n";
    let mut guest = KernelClient::new(script).variable("VALUE", value).boot(&net)?;
    guest.wait_for("FAIL guess")?;
    guest.signal("go")?;
    let outcome = guest.wait()?;
    ensure!(outcome.status == 1, "{outcome:?}");
    let expected = format!("value: {value}\nFAIL guess: expected '1', found '2'\nok gone\nfinished, 1 failed\n");
    // A check that is well ends with when it was.
    let timeless: String =
        outcome.output.lines().map(|line| format!("{}\n", line.split(" @").next().unwrap_or(line))).collect();
    ensure!(timeless == expected, "{outcome:?}");
    Ok(())
}

#[test]
fn a_guest_out_of_time_is_killed_with_all_its_processes() -> Result<()> {
    let net = Net::create()?;
    let mut guest = KernelClient::new("echo MARK here\nsleep 1000\n").limit(Duration::from_secs(6)).boot(&net)?;
    guest.wait_for("MARK here")?;
    let error = guest.wait().expect_err("the script sleeps longer than the guest may");
    ensure!(error.to_string().contains("still runs"), "{error:#}");
    let left = processes_in(net.name())?;
    ensure!(left.is_empty(), "processes {left:?} are left in the namespace");
    Ok(())
}

/// The processes that `ip netns` finds in a namespace. A killed one may take a moment to go.
fn processes_in(name: &str) -> Result<String> {
    let mut left = String::new();
    for _ in 0..50 {
        left = forebay_chaos::lab::run(std::process::Command::new("ip").args(["netns", "pids", name]))?;
        let running =
            |pid: &&str| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        left = left.split_whitespace().filter(running).collect::<Vec<_>>().join(" ");
        if left.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(left)
}
