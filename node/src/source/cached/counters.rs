//! What the cache did, in numbers.

use metrics::{Counter, counter};

/// Counters of one export. See `docs/metrics.md`.
#[derive(Debug)]
pub struct CachedCounters {
    /// Questions about attributes that went to the source (or joined one that did).
    pub revalidations: Counter,
    /// Answers given from what was known because the source could not be reached.
    pub stale: Counter,
    /// Names answered without a question.
    pub name_hits: Counter,
    /// Names that had to be asked for.
    pub name_misses: Counter,
    /// Pages of directories answered without a question.
    pub page_hits: Counter,
    /// Pages that had to be asked for.
    pub page_misses: Counter,
    /// Bytes that clients were served out of RAM.
    pub ram_bytes: Counter,
    /// Out of NVMe.
    pub nvme_bytes: Counter,
    /// From the source.
    pub source_bytes: Counter,
    /// From other nodes of the cluster.
    pub peer_bytes: Counter,
    /// Peers that were passed over because they took too long.
    pub hedged: Counter,
    /// Chunks fetched ahead of their readers.
    pub ahead_chunks: Counter,
    /// Small files fetched ahead of whoever opens one after the other.
    pub ahead_files: Counter,
    /// Chunks not fetched ahead because enough was under way.
    pub ahead_dropped: Counter,
    /// Data that was in memory only to be let go: its file was changed through us.
    pub private_contents: Counter,
}

impl CachedCounters {
    /// Registers with the recorder that is installed, if one is.
    pub fn new(export: &str) -> Self {
        let count = |name: &'static str| counter!(name, "export" => export.to_owned());
        let read =
            |tier: &'static str| counter!("forebay_read_bytes_total", "export" => export.to_owned(), "tier" => tier);
        Self {
            revalidations: count("forebay_revalidations_total"),
            stale: count("forebay_served_stale_total"),
            name_hits: count("forebay_name_hits_total"),
            name_misses: count("forebay_name_misses_total"),
            page_hits: count("forebay_directory_hits_total"),
            page_misses: count("forebay_directory_misses_total"),
            ram_bytes: read("ram"),
            nvme_bytes: read("nvme"),
            source_bytes: read("source"),
            peer_bytes: read("peer"),
            hedged: count("forebay_peer_hedged_total"),
            ahead_chunks: count("forebay_readahead_chunks_total"),
            ahead_files: count("forebay_readahead_files_total"),
            ahead_dropped: count("forebay_readahead_dropped_total"),
            private_contents: count("forebay_private_contents_total"),
        }
    }
}
