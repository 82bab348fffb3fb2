//! A server's own counters, read from its admin port.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// All metrics at one moment.
#[derive(Clone, Debug)]
pub struct Counted(String);

impl Counted {
    /// Asks for them.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn read(admin: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(admin).with_context(|| format!("the admin port {admin}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        if !text.starts_with("HTTP/1.0 200") && !text.starts_with("HTTP/1.1 200") {
            bail!("the admin port said {}", text.lines().next().unwrap_or_default());
        }
        Ok(Self(text))
    }

    /// The sum of a metric over all its labels that hold `label`.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            (labels.is_empty() || labels.starts_with('{')).then_some(())?;
            labels.contains(label).then(|| value.parse::<f64>().ok())?
        });
        values.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_over_one_metrics_labels_only() {
        let text = "HTTP/1.1 200 OK\n\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\na_total_more{x=\"1\"} 100\nb 7\n";
        let counted = Counted(text.into());
        assert_eq!((counted.sum("a_total", ""), counted.sum("a_total", "x=\"2\"")), (5.0, 3.0));
        assert_eq!((counted.sum("b", ""), counted.sum("c", "")), (7.0, 0.0));
    }
}
