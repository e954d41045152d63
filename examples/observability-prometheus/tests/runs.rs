//! The example can be scraped, and every metric that the dashboard shows is there.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

async fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the example listens");
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it takes requests");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    answer
}

/// The names of metrics in the expressions of the dashboard.
fn shown() -> BTreeSet<String> {
    let dashboard = include_str!("../../../docs/grafana-queuert.json");
    let words = dashboard.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words
        .filter(|word| word.starts_with("queuert_") && !is_label(word))
        .map(str::to_owned)
        .collect()
}

fn is_label(word: &str) -> bool {
    word.ends_with("_type") || word.ends_with("_reason") || word.ends_with("_operation")
}

/// Failures and losses that the example does not have.
const NOT_HERE: [&str; 9] = [
    "queuert_state_failed_total",
    "queuert_notify_failed_total",
    "queuert_job_dead_total",
    "queuert_job_reaped_total",
    "queuert_lease_lost_total",
    "queuert_chain_dead_total",
    "queuert_advice_given_total",
    "queuert_maintenance_findings_total",
    "queuert_event_missed_total",
];

#[tokio::test]
async fn the_metrics_are_scraped() {
    let mut example = Command::new(env!("CARGO_BIN_EXE_observability-prometheus"))
        .arg("127.0.0.1:0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the example starts");
    let mut lines = BufReader::new(example.stdout.take().expect("it is piped")).lines();
    let line = lines.next_line().await.expect("it can be read").expect("it says where");
    let address = line
        .trim_start_matches("metrics at http://")
        .trim_end_matches("/metrics")
        .to_owned();
    let done = async {
        loop {
            let text = scrape(&address).await;
            let mut lines = text.lines();
            if lines.any(|line| line.starts_with("queuert_chain_completed_total{") && line.ends_with(" 100")) {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let text = tokio::time::timeout(Duration::from_secs(60), done)
        .await
        .expect("all jobs are done");
    assert!(text.contains("HTTP/1.1 200"), "{text}");
    assert!(text.contains("queuert_attempt_failed_total{"), "{text}");
    let shown = shown();
    assert!(shown.len() > 10, "{shown:?}");
    for name in shown.iter().filter(|name| !NOT_HERE.contains(&name.as_str())) {
        assert!(
            text.contains(name.as_str()),
            "the dashboard shows {name}, which is not in\n{text}"
        );
    }
}
