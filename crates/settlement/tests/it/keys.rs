//! Idempotency keys.

use counterfoil_settlement::{Begun, Stored, begin_key, complete_key};
use counterfoil_tests::Stage;

#[tokio::test]
async fn a_key_gives_its_answer_again_refuses_another_request_and_says_when_it_is_running() {
    let pool = Stage::with_schema().await.pool();
    let answer = Stored { status: 201, body: b"{}".to_vec() };
    let mut first = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut first, "shop", "k", b"one").await.unwrap(), Begun::First);
    let mut second = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut second, "shop", "k", b"one").await.unwrap(), Begun::Running);
    assert_eq!(begin_key(&mut second, "other", "k", b"one").await.unwrap(), Begun::First, "keys belong to their scope");
    complete_key(&mut first, "shop", "k", &answer).await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(begin_key(&mut second, "shop", "k", b"one").await.unwrap(), Begun::Answered(answer));
    assert_eq!(begin_key(&mut second, "shop", "k", b"two").await.unwrap(), Begun::OtherRequest);
}

#[tokio::test]
async fn a_key_whose_call_was_rolled_back_was_never_used() {
    let pool = Stage::with_schema().await.pool();
    let mut first = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut first, "shop", "k", b"one").await.unwrap(), Begun::First);
    first.rollback().await.unwrap();
    let mut second = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut second, "shop", "k", b"two").await.unwrap(), Begun::First);
}
