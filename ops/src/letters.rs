//! `counterfoil dead-letters` and `counterfoil replays`.

use std::time::Duration;

use counterfoil_inbox::dead::{self, Filter, Group, Order, Verdict};
use counterfoil_inbox::replay::{self, PlanLine, Replay, Started};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};

use crate::actions::{Actor, Role, actions_on_letter, record};
use crate::listed::{self, Listed, listed};
use crate::mask::{masked, revealed};
use crate::oncall::{DeadLetters, PayloadOptions, ReplayOptions, ReplaysOptions};
use crate::replays::{self, Risks, Wanted, confirm, decide, must_choose, nothing, refused, unnamed};
use crate::words::{amounts, money, state_words};
use crate::{instant, print};

/// Pause between two looks at a run.
const LOOK: Duration = Duration::from_millis(200);

pub(crate) async fn run(pool: &PgPool, actor: &Actor, command: DeadLetters, horizon_s: i64) -> anyhow::Result<()> {
    match command {
        DeadLetters::List { filter, group: true, limit, json, .. } => groups(&mut *pool.acquire().await?, &filter.filter(), limit, json).await,
        DeadLetters::List { filter, oldest, limit, json, .. } => {
            let order = if oldest { Order::Oldest } else { Order::Newest };
            list(&mut *pool.acquire().await?, &filter.filter(), order, limit, json, horizon_s).await
        }
        DeadLetters::Show { id, payload, json } => show(pool, actor, id, &payload, json, horizon_s).await,
        DeadLetters::Replay(options) => replay(pool, actor, options, horizon_s).await,
        DeadLetters::Discard { ids, reason } => decided(&ids, &decide(pool, actor, &ids, true, &reason).await?, "discarded"),
        DeadLetters::Reopen { ids, reason } => decided(&ids, &decide(pool, actor, &ids, false, &reason).await?, "open again"),
    }
}

fn decided(asked: &[i64], done: &[i64], what: &str) -> anyhow::Result<()> {
    for id in asked {
        let outcome = if done.contains(id) { what } else { "not changed: it is not there, or not in a state that allows it" };
        print(format_args!("d_{id}  {outcome}\n"))?;
    }
    anyhow::ensure!(done.len() == asked.len(), nothing(format!("{} of {} changed", done.len(), asked.len())));
    Ok(())
}

async fn list(connection: &mut PgConnection, filter: &Filter, order: Order, limit: i64, as_json: bool, horizon_s: i64) -> anyhow::Result<()> {
    let letters = listed(connection, filter, order, 0, limit, horizon_s).await?;
    let total = dead::count(connection, filter).await?;
    if as_json {
        let letters: Vec<Value> = letters.iter().map(Listed::json).collect();
        return Ok(print(format_args!("{}\n", json!({ "total": total, "dead_letters": letters })))?);
    }
    for each in &letters {
        let letter = &each.letter;
        print(format_args!(
            "d_{:<6} {}  {:<8} {:<12} {:<22} {:>14}  order {}\n",
            letter.id,
            instant(letter.died_at),
            letter.consumer,
            letter.kind,
            state_words(letter),
            money(letter.amount_minor, letter.currency.as_deref()),
            each.order().as_deref().unwrap_or("-")
        ))?;
        print(format_args!("         {}  [{}]\n", letter.error, each.verdict()))?;
    }
    if letters.is_empty() {
        let open = dead::count(connection, &Filter { state: Some("open".into()), ..Filter::default() }).await?;
        return Ok(print(format_args!("nothing matches {}; {open} are open without this filter\n", filter.words()))?);
    }
    Ok(print(format_args!("{} of {total} shown\n", letters.len()))?)
}

async fn groups(connection: &mut PgConnection, filter: &Filter, limit: i64, as_json: bool) -> anyhow::Result<()> {
    let groups = dead::groups(connection, filter, limit).await?;
    if as_json {
        return Ok(print(format_args!("{}\n", json!({ "groups": groups })))?);
    }
    for Group { consumer, kind, example, letters, orders, first_died_at, last_died_at, came_back, amounts: sums } in &groups {
        print(format_args!(
            "{letters:>6}  {consumer:<8} {kind:<14} {orders} orders, {}  first {}, last {}, {came_back} came back\n        {example}\n",
            amounts(sums),
            instant(*first_died_at),
            instant(*last_died_at)
        ))?;
    }
    Ok(print(format_args!("{} groups\n", groups.len()))?)
}

async fn show(pool: &PgPool, actor: &Actor, id: i64, payload: &PayloadOptions, as_json: bool, horizon_s: i64) -> anyhow::Result<()> {
    let mut connection = pool.acquire().await?;
    let found = listed::find(&mut connection, id, horizon_s).await?;
    let found = found.ok_or_else(|| nothing(format!("no dead letter d_{id}: counterfoil dead-letters list --state all")))?;
    let letter = &found.letter;
    let (body, headers) = dead::bytes(&mut connection, id).await?.unwrap_or_default();
    let history = actions_on_letter(&mut connection, id).await?;
    let text = payload_text(&mut connection, actor, payload, &format!("d_{id}"), &body, letter.event_id.is_some()).await?;
    if as_json {
        let mut value = found.json();
        value["headers"] = headers;
        value["payload"] = json!(text);
        value["actions"] = json!(history);
        return Ok(print(format_args!("{value}\n"))?);
    }
    let order = found.order().map_or_else(|| "no order".to_owned(), |order| format!("order {order}"));
    print(format_args!(
        "d_{id}  {}\n{}'s effect of {} for {order} did not happen: {}\n",
        state_words(letter),
        letter.consumer,
        letter.topic.as_deref().unwrap_or("something that is no event"),
        letter.error
    ))?;
    print(format_args!(
        "attempts    {}, {} replays, first failed {}, died {}\n",
        letter.attempts,
        letter.replay,
        instant(letter.first_failed_at),
        instant(letter.died_at)
    ))?;
    print(format_args!("at stake    {}\n", money(letter.amount_minor, letter.currency.as_deref())))?;
    if let Some(previous) = &letter.previous_error {
        print(format_args!("before that {previous}\n"))?;
    }
    print(format_args!("a replay    {}\n", found.verdict()))?;
    print(format_args!("event       {}\n", letter.event_id.map_or_else(|| "none: it can only be discarded".to_owned(), |id| id.to_string())))?;
    print(format_args!("body        {} bytes\n", letter.body_bytes))?;
    for action in &history {
        print(format_args!("{}  {} {}: {} ({})\n", instant(action.at), action.person, action.action, action.outcome, action.reason))?;
    }
    for (name, value) in headers.as_object().into_iter().flatten() {
        print(format_args!("header      {name}: {}\n", value.as_str().unwrap_or_default()))?;
    }
    if let Some(text) = text {
        print(format_args!("{text}\n"))?;
    }
    if let Some(event) = letter.event_id {
        let replay = if letter.state == "open" { format!(" · counterfoil dead-letters replay d_{id} --reason …") } else { String::new() };
        print(format_args!("next        counterfoil trail {event}{replay}\n"))?;
    }
    Ok(())
}

/// The payload of `object` as `options` want it, if they do; of what has no known shape every text is masked.
///
/// # Errors
/// When customer data may not be shown, or the database fails.
pub(crate) async fn payload_text(
    connection: &mut PgConnection,
    actor: &Actor,
    options: &PayloadOptions,
    object: &str,
    body: &[u8],
    known: bool,
) -> anyhow::Result<Option<String>> {
    if options.reveal {
        return Ok(Some(reveal(connection, actor, object, &options.reason, body).await?));
    }
    let shown = || masked(body, known).unwrap_or_else(|why| format!("({} bytes, {why}; --reveal --reason … shows it)", body.len()));
    Ok(options.payload.then(shown))
}

/// Customer data, for whoever may see it and says why; written down first.
pub(crate) async fn reveal(connection: &mut PgConnection, actor: &Actor, object: &str, reason: &str, body: &[u8]) -> anyhow::Result<String> {
    let why = if actor.role < Role::Admin {
        Some("customer data is for the role admin")
    } else if reason.trim().is_empty() {
        Some("customer data is revealed for a reason: --reason")
    } else if unnamed(actor).is_some() {
        Some("say who you are: --by or COUNTERFOIL_PERSON")
    } else {
        None
    };
    record(connection, actor, "reveal", object, usize::from(why.is_none()), reason, &why.map_or_else(|| "shown".to_owned(), |why| format!("refused: {why}")))
        .await?;
    why.map_or_else(|| Ok(revealed(body)), |why| Err(refused(why)))
}

async fn replay(pool: &PgPool, actor: &Actor, options: ReplayOptions, horizon_s: i64) -> anyhow::Result<()> {
    let wanted = Wanted {
        reason: options.reason.clone(),
        rate_per_s: options.rate,
        one_first: !options.all_at_once,
        stop_after: options.stop_after,
        risks: Risks { unknown: options.include_unknown, unsafe_: options.include_unsafe },
        confirmed: options.confirm,
    };
    if let Some(plan) = options.plan {
        return run_plan(pool, actor, plan, &wanted, options.detach, options.json, horizon_s).await;
    }
    if options.id.is_some() && wanted.reason.trim().is_empty() {
        return Err(refused("a replay needs a reason: --reason"));
    }
    let mut tx = pool.begin().await?;
    let plan = if let Some(id) = options.id {
        let letter = dead::find(&mut tx, id).await?.ok_or_else(|| nothing(format!("no dead letter d_{id}")))?;
        anyhow::ensure!(
            letter.state == "open",
            refused(match letter.state.as_str() {
                "resolved" => format!("d_{id} is {}: nothing is left to do", state_words(&letter)),
                "discarded" => format!("d_{id} is {}: counterfoil dead-letters reopen d_{id} --reason …", state_words(&letter)),
                _ => format!("d_{id} is being replayed: counterfoil replays list"),
            })
        );
        replay::plan(&mut tx, &Filter::default(), Some(&[id]), &actor.person, horizon_s).await?
    } else {
        let filter = options.filter.filter().sound();
        must_choose(&filter)?;
        anyhow::ensure!(filter.state.as_deref().is_none_or(|state| state == "open"), refused("only what is open is replayed: reopen the others first"));
        replay::plan(&mut tx, &options.filter.filter(), None, &actor.person, horizon_s).await?
    };
    let lines = replay::plan_lines(&mut tx, plan).await?;
    if lines.is_empty() {
        return Err(nothing(format!("nothing that is open matches {}", options.filter.filter().words())));
    }
    tx.commit().await?;
    if options.id.is_some() {
        let verdict = lines[0].verdict;
        let taken =
            verdict == Verdict::WillRun || (verdict == Verdict::Unknown && wanted.risks.unknown) || (verdict == Verdict::Unsafe && wanted.risks.unsafe_);
        let detail = dead::judge(&mut *pool.acquire().await?, &[options.id.unwrap_or_default()], horizon_s).await?.pop().map(|judged| judged.detail);
        anyhow::ensure!(taken, refused(format!("{}{}", verdict.words(&detail.unwrap_or_default()), way_out(verdict))));
        let wanted = Wanted { confirmed: Some(1), ..wanted };
        return run_plan(pool, actor, plan, &wanted, options.detach, options.json, horizon_s).await;
    }
    print_plan(plan, &lines, options.json)
}

fn way_out(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Unknown => ": --include-unknown takes it knowingly",
        Verdict::Unsafe => ": --include-unsafe takes it knowingly",
        Verdict::Blocked => ": counterfoil consumer resume, or wait for the lease to end",
        Verdict::WillRun | Verdict::Done | Verdict::Superseded => ": there is nothing to do",
        Verdict::NotAnEvent => ": discard it, with a reason",
    }
}

fn print_plan(plan: i64, lines: &[PlanLine], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return Ok(print(format_args!("{}\n", json!({ "plan": format!("p_{plan}"), "valid_s": replay::PLAN_VALID_S, "lines": lines })))?);
    }
    for line in lines {
        print(format_args!("{:>6}  {:<55} {} orders, {}\n", line.letters, line.verdict.words(""), line.orders, amounts(&line.amounts)))?;
    }
    let will_run = lines.iter().filter(|line| line.verdict == Verdict::WillRun).map(|line| line.letters).sum::<i64>();
    let confirm = if will_run > replays::CONFIRM_ABOVE as i64 { format!(" --confirm {will_run}") } else { String::new() };
    print(format_args!("nothing was changed. For 15 minutes: counterfoil dead-letters replay --plan p_{plan} --reason …{confirm}\n"))?;
    Ok(())
}

async fn run_plan(pool: &PgPool, actor: &Actor, plan: i64, wanted: &Wanted, detach: bool, as_json: bool, horizon_s: i64) -> anyhow::Result<()> {
    match confirm(pool, actor, plan, wanted, horizon_s).await? {
        Started::Running(0) if find_run(&mut *pool.acquire().await?, plan).await?.skipped == 0 => {
            return Err(refused(format!("nothing of p_{plan} would run: counterfoil dead-letters replay with the same filter shows why")));
        }
        Started::Running(_) => {}
        Started::Already { by, at } => print(format_args!("r_{plan} was started by {by} at {at}: the same run\n"))?,
        Started::Old => return Err(refused(format!("p_{plan} is older than 15 minutes: make a fresh one with the same filter"))),
        Started::NoPlan => return Err(nothing(format!("no plan p_{plan}"))),
    }
    if detach {
        return Ok(print(format_args!("r_{plan} runs: counterfoil replays show r_{plan} --watch\n"))?);
    }
    follow(pool, plan, true, as_json, horizon_s).await
}

/// Shows a run until it has ended, and drives it, where `driving`: housekeeping does the same, and neither gets in the other's way.
async fn follow(pool: &PgPool, run: i64, driving: bool, as_json: bool, horizon_s: i64) -> anyhow::Result<()> {
    let mut shown = String::new();
    loop {
        if driving {
            replays::step(pool, Some(run), horizon_s).await?;
        }
        let state = find_run(&mut *pool.acquire().await?, run).await?;
        if state.words() != shown && !as_json {
            shown = state.words();
            print(format_args!("r_{run}  {shown}\n"))?;
        }
        if matches!(state.state.as_str(), "done" | "stopped") {
            return ended(&mut *pool.acquire().await?, &state, as_json).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn find_run(connection: &mut PgConnection, run: i64) -> anyhow::Result<Replay> {
    replay::replays(connection, Some(run), 1).await?.pop().ok_or_else(|| nothing(format!("no replay r_{run}")))
}

/// Says how a run ended; fails when some came back.
async fn ended(connection: &mut PgConnection, run: &Replay, as_json: bool) -> anyhow::Result<()> {
    let back = replay::items(connection, run.id, Some("came_back"), 50).await?;
    if as_json {
        print(format_args!("{}\n", json!({ "replay": run, "came_back": back })))?;
    } else {
        for item in &back {
            print(format_args!(
                "d_{}  came back: {} (before: {})\n",
                item.dead_letter_id,
                item.error.as_deref().unwrap_or_default(),
                item.error_before.as_deref().unwrap_or_default()
            ))?;
        }
        if let Some(why) = &run.stopped_why {
            print(format_args!("stopped: {why}; {} are open again\n", run.left))?;
        }
    }
    anyhow::ensure!(run.state == "done" && back.is_empty(), "r_{}: {}", run.id, run.words());
    Ok(())
}

pub(crate) async fn runs(pool: &PgPool, actor: &Actor, command: ReplaysOptions, horizon_s: i64) -> anyhow::Result<()> {
    match command {
        ReplaysOptions::List { limit, json } => {
            let runs = replay::replays(&mut *pool.acquire().await?, None, limit).await?;
            if json {
                return Ok(print(format_args!("{}\n", json!({ "replays": runs })))?);
            }
            for run in &runs {
                let at = run.started_at.map(instant).unwrap_or_default();
                let by = run.started_by.as_deref().unwrap_or_default();
                print(format_args!(
                    "r_{:<5} {at}  {:<8} {}  by {by}: {} ({})\n",
                    run.id,
                    run.state,
                    run.words(),
                    run.reason.as_deref().unwrap_or_default(),
                    run.choice
                ))?;
            }
            Ok(print(format_args!("{} replays\n", runs.len()))?)
        }
        ReplaysOptions::Show { id, watch: true, json } => follow(pool, id, false, json, horizon_s).await,
        ReplaysOptions::Show { id, json, .. } => {
            let mut connection = pool.acquire().await?;
            let run = find_run(&mut connection, id).await?;
            if !json {
                print(format_args!(
                    "r_{id}  {}  {}\nby {}: {}\n{}\n",
                    run.state,
                    run.words(),
                    run.started_by.as_deref().unwrap_or(&run.planned_by),
                    run.reason.as_deref().unwrap_or("(a plan)"),
                    run.choice
                ))?;
            }
            if run.state == "done" || run.state == "stopped" {
                ended(&mut connection, &run, json).await
            } else if json {
                Ok(print(format_args!("{}\n", json!({ "replay": run })))?)
            } else {
                Ok(())
            }
        }
        ReplaysOptions::Stop { id, reason } => {
            anyhow::ensure!(replays::stop(pool, actor, id, &reason).await?, nothing(format!("r_{id} does not run")));
            Ok(print(format_args!("r_{id} is stopped: what was released cannot be recalled\n"))?)
        }
    }
}
