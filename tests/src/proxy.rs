//! A TCP proxy that can cut and black-hole what runs through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy in front of one server.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Its own address.
    pub address: String,
    cut: watch::Sender<u64>,
    silent: Arc<AtomicBool>,
}

impl Proxy {
    /// In front of `host:port`.
    pub async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self { address: listener.local_addr().unwrap().to_string(), cut: watch::channel(0).0, silent: Arc::default() };
        let (serving, target) = (proxy.clone(), target.to_owned());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&target).await else { continue };
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                serving.carry(near_read, far_write);
                serving.carry(far_read, near_write);
            }
        });
        proxy
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }

    /// Swallows everything without closing, or ends that.
    pub fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    fn carry(&self, mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf) {
        let (mut cut, silent) = (self.cut.subscribe(), Arc::clone(&self.silent));
        tokio::spawn(async move {
            let mut piece = vec![0; 16384];
            loop {
                let read = tokio::select! {
                    read = from.read(&mut piece) => read,
                    _ = cut.changed() => return,
                };
                let Ok(count @ 1..) = read else { return };
                if !silent.load(Ordering::Relaxed) && to.write_all(&piece[..count]).await.is_err() {
                    return;
                }
            }
        });
    }
}
