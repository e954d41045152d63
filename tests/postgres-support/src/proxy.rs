//! A network between a client and a server.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Passes connections on to a server on this machine, and misbehaves when it is told to. Dropped, it cuts them all.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    weather: Arc<watch::Sender<Weather>>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct Weather {
    /// The port that new connections lead to.
    server: u16,
    /// How many connections were made so far; that is also the number of the next one.
    accepted: usize,
    /// Connections with lower numbers are cut.
    cut_below: usize,
    /// Connections with lower numbers pass nothing on, ever.
    abandoned_below: usize,
    /// No connection passes anything on.
    frozen: bool,
    /// New connections are closed at once.
    refusing: bool,
    delay: Duration,
}

impl Proxy {
    /// A network to the port of a server on 127.0.0.1 that works well for now.
    ///
    /// # Panics
    ///
    /// If this machine has no free port.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing behind.
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("there is a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let weather = Arc::new(watch::Sender::new(Weather {
            server,
            accepted: 0,
            cut_below: 0,
            abandoned_below: 0,
            frozen: false,
            refusing: false,
            delay: Duration::ZERO,
        }));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&weather)));
        Self {
            port,
            weather,
            accepting,
        }
    }

    /// The port to connect to instead of the server's.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were made so far.
    pub fn accepted(&self) -> usize {
        self.weather.borrow().accepted
    }

    /// Cuts all connections that are there. New ones work.
    pub fn cut(&self) {
        self.weather.send_modify(|weather| weather.cut_below = weather.accepted);
    }

    /// Passes nothing on any more on the connections that are there, in either direction, and closes none of them: as
    /// when a router has forgotten them. New ones work.
    pub fn abandon(&self) {
        self.weather
            .send_modify(|weather| weather.abandoned_below = weather.accepted);
    }

    /// Passes nothing on, in either direction, on old connections and on new ones, and closes none: as when a machine
    /// has vanished. `false` lets what was held back go on.
    pub fn freeze(&self, frozen: bool) {
        self.weather.send_modify(|weather| weather.frozen = frozen);
    }

    /// Cuts all connections that are there, and closes new ones as soon as they are made; `false` lets new ones work.
    pub fn refuse(&self, refusing: bool) {
        self.weather.send_modify(|weather| {
            weather.refusing = refusing;
            if refusing {
                weather.cut_below = weather.accepted;
            }
        });
    }

    /// Cuts all connections that are there, and leads new ones to another port: as after a failover.
    pub fn lead_to(&self, server: u16) {
        self.weather.send_modify(|weather| {
            weather.server = server;
            weather.cut_below = weather.accepted;
        });
    }

    /// Holds everything up for this long, in either direction.
    pub fn delay(&self, delay: Duration) {
        self.weather.send_modify(|weather| weather.delay = delay);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections are tasks of that task's, and end with it.
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, weather: Arc<watch::Sender<Weather>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let mut number = 0;
        weather.send_modify(|weather| {
            number = weather.accepted;
            weather.accepted += 1;
        });
        if weather.borrow().refusing {
            continue;
        }
        let server = weather.borrow().server;
        connections.spawn(carry(client, server, number, weather.subscribe()));
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(client: TcpStream, server: u16, number: usize, weather: watch::Receiver<Weather>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let mut cut = weather.clone();
    // Whichever ends first: the other direction is dropped with it.
    tokio::select! {
        () = pass(client_reads, server_writes, number, weather.clone()) => {}
        () = pass(server_reads, client_writes, number, weather) => {}
        _ = cut.wait_for(|weather| number < weather.cut_below) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, number: usize, mut weather: watch::Receiver<Weather>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(length) = from.read(&mut buffer).await else {
            return;
        };
        // An end is news like any other, and is held back too.
        let passable = |weather: &Weather| !weather.frozen && number >= weather.abandoned_below;
        let delay = match weather.wait_for(passable).await {
            Ok(weather) => weather.delay,
            Err(_) => return,
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if length == 0 || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
