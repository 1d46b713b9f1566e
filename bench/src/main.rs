//! `make bench`.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    counterfoil_bench::run(std::env::args().nth(1).as_deref()).await
}
