//! A consumer that panics, of both kinds, run in this process.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_chassis::{Process, Readiness};
use counterfoil_consumers::runner::{Apply, Deliver, Effect, Failure, InDatabase, Kind, Outside, Runner};
use counterfoil_payments::Event;
use counterfoil_tests::until;
use sqlx::PgTransaction;
use tokio_util::sync::CancellationToken;

use crate::support::Bench;

/// Which order makes it panic.
#[derive(Debug)]
struct Touchy(uuid::Uuid);

impl Touchy {
    fn look(&self, event: &Event) {
        assert_ne!(event.order_id.0, self.0, "this one is too much");
    }
}

impl Apply for Touchy {
    const NAME: &'static str = "ledger";
    async fn apply(&self, _: &mut PgTransaction<'_>, events: &[&Event]) -> sqlx::Result<()> {
        events.iter().for_each(|event| self.look(event));
        Ok(())
    }
}

impl Deliver for Touchy {
    const NAME: &'static str = "ledger";
    const DEADLINE: Duration = Duration::from_secs(5);
    async fn deliver(&self, event: &Event) -> Result<Effect, Failure> {
        self.look(event);
        Ok(Effect::Made(None))
    }
}

async fn runs<K: Kind>(bench: &Bench, kind: K, process: &Process) {
    let runner = Runner {
        amqp_url: bench.stage.amqp_url.clone(),
        rungs: counterfoil_tests::stage::test_rungs(),
        prefetch: 20,
        process: process.clone(),
        pool: bench.stage.pool(),
    };
    let look = async {
        until("the panic is dead", 20, 1, async || bench.stage.waiting(&bench.dead_queue()).await).await;
        until("its neighbours are done", 20, 9, async || bench.stage.count("SELECT count(*) FROM processed_events WHERE state = 'done'").await).await;
        process.shutdown.cancel();
    };
    tokio::join!(runner.run(Arc::new(kind)), look);
    let dead = bench.stage.take_all(&bench.dead_queue()).await.remove(0);
    assert!(dead.header("x-counterfoil-reason").contains("panicked"), "{}", dead.header("x-counterfoil-reason"));
}

#[tokio::test]
async fn a_panic_in_a_handler_is_dead_lettered_and_its_neighbours_are_unharmed_in_both_kinds() {
    for outside in [true, false] {
        let bench = Bench::of("ledger").await;
        let mut events = Vec::new();
        for _ in 0..10 {
            events.push(bench.paid().await.0);
        }
        let touchy = Touchy(events[4]["subject"].as_str().unwrap().parse().unwrap());
        bench.stage.put_events("ledger", &events).await;
        let process = Process { shutdown: CancellationToken::new(), readiness: Readiness::default(), deadline: Duration::from_secs(5) };
        if outside {
            runs(&bench, Outside::new(touchy, bench.stage.pool(), 4, process.clone()), &process).await;
        } else {
            runs(&bench, InDatabase::new(touchy, bench.stage.pool(), 20), &process).await;
        }
    }
}
