//! Idempotency keys.

use counterfoil_settlement::{Begun, Stored, complete_keys};
use counterfoil_tests::Stage;

use crate::support::{ask, begin_key};

#[tokio::test]
async fn a_key_gives_its_answer_again_refuses_another_request_and_says_when_it_is_running() {
    let pool = Stage::with_schema().await.pool();
    let answer = Stored { status: 201, body: b"{}".to_vec() };
    let mut first = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut first, &ask("shop", "k", b"one")).await, Begun::First);
    let mut second = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut second, &ask("shop", "k", b"one")).await, Begun::Running);
    assert_eq!(begin_key(&mut second, &ask("other", "k", b"one")).await, Begun::First, "keys belong to their scope");
    complete_keys(&mut first, &[(&ask("shop", "k", b"one"), &answer)]).await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(begin_key(&mut second, &ask("shop", "k", b"one")).await, Begun::Answered(answer));
    assert_eq!(begin_key(&mut second, &ask("shop", "k", b"two")).await, Begun::OtherRequest);
}

#[tokio::test]
async fn a_key_whose_call_was_rolled_back_was_never_used() {
    let pool = Stage::with_schema().await.pool();
    let mut first = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut first, &ask("shop", "k", b"one")).await, Begun::First);
    first.rollback().await.unwrap();
    let mut second = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut second, &ask("shop", "k", b"two")).await, Begun::First);
}
