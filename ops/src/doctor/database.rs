//! The checks of PostgreSQL, and of what the database knows of the fleet.

use counterfoil_broker::TOPOLOGY_VERSION;
use counterfoil_chassis::postgres::{deployment, schema_fits, tasks};
use counterfoil_chassis::replica::replicas;
use counterfoil_inbox::upkeep::oldest_open_seconds;
use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;

use super::{Finding, Health, unknown};

/// A difference of clocks that matters: signatures allow five minutes, leases half of one.
const CLOCK_S: f64 = 2.0;

/// A transaction that is open for so long keeps vacuum from removing what died since.
const TRANSACTION_S: f64 = 60.0;

/// Tables that change with every webhook.
const HOT: [&str; 6] = ["outbox", "orders", "payments", "processed_events", "webhook_events", "draws"];

pub(super) async fn examine(pool: &PgPool, horizon_s: i64) -> Vec<Finding> {
    let mut connection = match pool.acquire().await {
        Ok(connection) => connection,
        Err(error) => {
            return vec![Finding::bad(
                "database",
                Health::Fail,
                format!("cannot be reached: {error}"),
                "COUNTERFOIL_DATABASE_URL, the network, pg_hba.conf, and whether the server runs",
            )];
        }
    };
    let connection = &mut *connection;
    vec![
        version(connection).await.unwrap_or_else(|error| unknown("database", &error)),
        schema(connection).await.unwrap_or_else(|error| unknown("schema", &error)),
        privileges(connection).await.unwrap_or_else(|error| unknown("privileges", &error)),
        clock(connection).await.unwrap_or_else(|error| unknown("clock", &error)),
        connections(connection).await.unwrap_or_else(|error| unknown("connections", &error)),
        transactions(connection).await.unwrap_or_else(|error| unknown("transactions", &error)),
        vacuum(connection).await.unwrap_or_else(|error| unknown("vacuum", &error)),
        replication(connection).await.unwrap_or_else(|error| unknown("replication", &error)),
        silent(connection).await.unwrap_or_else(|error| unknown("tasks", &error)),
        retention(connection, horizon_s).await.unwrap_or_else(|error| unknown("retention", &error)),
    ]
}

async fn version(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let row = sqlx::query!(
        r#"SELECT current_setting('server_version_num')::integer AS "number!", current_setting('server_version') AS "name!", pg_is_in_recovery() AS "standby!""#
    );
    let row = row.fetch_one(connection).await?;
    Ok(match (row.number, row.standby) {
        (_, true) => Finding::bad("database", Health::Fail, "it is a standby: it takes no writes", "point COUNTERFOIL_DATABASE_URL at the primary"),
        (..150_000, _) => Finding::bad("database", Health::Fail, format!("PostgreSQL {}", row.name), "PostgreSQL 15 or newer is needed"),
        _ => Finding::ok("database", format!("PostgreSQL {}", row.name)),
    })
}

async fn schema(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let deployment = deployment(connection).await?;
    if let Err(why) = schema_fits(deployment) {
        return Ok(Finding::bad("schema", Health::Fail, why, "counterfoil-migrate"));
    }
    if deployment.topology < TOPOLOGY_VERSION {
        let found = format!("the recorded topology is {}, this release needs {TOPOLOGY_VERSION}: relays claim nothing", deployment.topology);
        return Ok(Finding::bad("schema", Health::Fail, found, "counterfoil-migrate"));
    }
    Ok(Finding::ok("schema", format!("schema {}, topology {}", deployment.schema, deployment.topology)))
}

async fn privileges(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let lacking = sqlx::query_scalar!(
        r#"SELECT t || ': ' || p AS "lacking!" FROM unnest(ARRAY['outbox', 'orders', 'payments', 'processed_events', 'webhook_events', 'dead_letters', 'actions']) AS t,
            unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS p WHERE NOT has_table_privilege(t, p) AND NOT (t = 'actions' AND p = 'UPDATE')"#
    );
    let lacking = lacking.fetch_all(connection).await?;
    if lacking.is_empty() {
        return Ok(Finding::ok("privileges", "tables can be read and written"));
    }
    Ok(Finding::bad(
        "privileges",
        Health::Fail,
        lacking.join(", "),
        "GRANT these to the role in COUNTERFOIL_DATABASE_URL, or use the role that ran counterfoil-migrate",
    ))
}

async fn clock(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let before = OffsetDateTime::now_utc();
    let there = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(connection).await?;
    let after = OffsetDateTime::now_utc();
    let half: time::Duration = (after - before) / 2;
    let off = (there - (before + half)).as_seconds_f64();
    if off.abs() > CLOCK_S {
        return Ok(Finding::bad(
            "clock",
            Health::Warn,
            format!("this machine and the database differ by {off:.1} s"),
            "synchronise both by NTP: signatures carry times, and leases follow the database's clock",
        ));
    }
    Ok(Finding::ok("clock", format!("{:.0} ms from the database's", off * 1000.0)))
}

async fn connections(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let row = sqlx::query!(
        r#"SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint AS "allowed!",
            (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS "used!""#
    );
    let row = row.fetch_one(&mut *connection).await?;
    let running = replicas(connection).await?;
    let wanted: i64 = running.iter().filter_map(|replica| replica.report["connections"].as_i64()).sum();
    let found = format!("{} replicas may use {wanted} connections, {} are used now by everybody, {} are allowed", running.len(), row.used, row.allowed);
    if wanted > row.allowed {
        return Ok(Finding::bad("connections", Health::Fail, found, "raise max_connections, run fewer replicas, or lower COUNTERFOIL_CONCURRENCY"));
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of connections")]
    let share = row.used as f64 / row.allowed.max(1) as f64;
    if share > 0.8 {
        return Ok(Finding::bad("connections", Health::Warn, found, "raise max_connections before another replica starts"));
    }
    Ok(Finding::ok("connections", found))
}

async fn transactions(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let old = sqlx::query!(
        r#"SELECT pid AS "pid!", extract(epoch FROM now() - xact_start)::float8 AS "age_s!", application_name AS "name!", COALESCE(state, '') AS "state!",
            left(regexp_replace(query, '\s+', ' ', 'g'), 100) AS "query!" FROM pg_stat_activity
        WHERE xact_start < now() - make_interval(secs => $1) AND backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 5"#,
        TRANSACTION_S,
    );
    let old = old.fetch_all(&mut *connection).await?;
    let prepared = sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM pg_prepared_xacts"#).fetch_one(connection).await?;
    if old.is_empty() && prepared == 0 {
        return Ok(Finding::ok("transactions", "none is open for longer than a minute"));
    }
    let mut found: Vec<String> =
        old.iter().map(|row| format!("pid {} ({}, {}) open for {:.0} s: {}", row.pid, row.name, row.state, row.age_s, row.query)).collect();
    if prepared > 0 {
        found.push(format!("{prepared} prepared transactions"));
    }
    let fix = old.first().map_or_else(
        || "ROLLBACK PREPARED what nobody will commit".to_owned(),
        |row| format!("end it where it was begun, or SELECT pg_terminate_backend({}): vacuum cannot remove what died since", row.pid),
    );
    Ok(Finding::bad("transactions", Health::Warn, found.join("; "), fix))
}

async fn vacuum(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let hot: Vec<String> = HOT.map(str::to_owned).to_vec();
    let bloated = sqlx::query!(
        r#"SELECT relname AS "name!", n_dead_tup AS "dead!", n_live_tup AS "live!", to_char(last_autovacuum AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS last
        FROM pg_stat_user_tables WHERE relname = ANY ($1) AND n_dead_tup > 20000 AND n_dead_tup > n_live_tup * 0.5"#,
        &hot,
    );
    let bloated = bloated.fetch_all(&mut *connection).await?;
    let on = sqlx::query_scalar!(r#"SELECT current_setting('autovacuum')::boolean AS "on!""#).fetch_one(connection).await?;
    if !on {
        return Ok(Finding::bad("vacuum", Health::Fail, "autovacuum is off", "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()"));
    }
    if bloated.is_empty() {
        return Ok(Finding::ok("vacuum", "autovacuum keeps up with the hot tables"));
    }
    let found: Vec<String> = bloated
        .iter()
        .map(|row| format!("{}: {} dead of {} rows, last autovacuum {}", row.name, row.dead, row.dead + row.live, row.last.as_deref().unwrap_or("never")))
        .collect();
    Ok(Finding::bad(
        "vacuum",
        Health::Warn,
        found.join("; "),
        "look for long transactions (--check transactions), then VACUUM these, and lower autovacuum_vacuum_scale_factor for them",
    ))
}

async fn replication(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let row = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM pg_stat_replication) AS "standbys!", current_setting('synchronous_standby_names') AS "names!", current_setting('synchronous_commit') AS "commit!", current_setting('fsync')::boolean AS "fsync!""#
    );
    let row = row.fetch_one(connection).await?;
    if !row.fsync || row.commit == "off" {
        let fix = "ALTER SYSTEM SET fsync = on; ALTER SYSTEM SET synchronous_commit = on: a delivery is answered once it is durable";
        return Ok(Finding::bad(
            "replication",
            Health::Fail,
            format!("fsync is {}, synchronous_commit is {}", if row.fsync { "on" } else { "off" }, row.commit),
            fix,
        ));
    }
    if row.standbys > 0 && row.names.is_empty() {
        let fix = "set synchronous_standby_names, if a standby may take over: else what was answered 200 may be lost with the primary";
        return Ok(Finding::bad("replication", Health::Warn, format!("{} standbys, none of them synchronous", row.standbys), fix));
    }
    Ok(Finding::ok(
        "replication",
        if row.standbys == 0 {
            "no standby is connected: nothing is expected to take over".to_owned()
        } else {
            format!("{} standbys, synchronous: {}", row.standbys, row.names)
        },
    ))
}

async fn silent(connection: &mut PgConnection) -> sqlx::Result<Finding> {
    let tasks = tasks(connection).await?;
    let fix = "is counterfoil housekeep, or counterfoil-consumers dead-letters for the keeper, running? Its log says what it waits for";
    for needed in ["keeper", "lost", "watch"] {
        if !tasks.iter().any(|ran| ran.task == needed) {
            return Ok(Finding::bad("tasks", Health::Fail, format!("{needed} has never run"), fix));
        }
    }
    let late: Vec<String> =
        tasks.iter().filter(|ran| ran.ago_s > 3.0 * ran.interval_s.max(10.0)).map(|ran| format!("{} last ran {:.0} s ago", ran.task, ran.ago_s)).collect();
    if late.is_empty() {
        return Ok(Finding::ok("tasks", format!("{} tasks run when they should", tasks.len())));
    }
    Ok(Finding::bad("tasks", Health::Fail, late.join(", "), fix))
}

async fn retention(connection: &mut PgConnection, horizon_s: i64) -> sqlx::Result<Finding> {
    let oldest = oldest_open_seconds(connection).await?;
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let horizon = horizon_s as f64;
    let days = |seconds: f64| seconds / 86_400.0;
    if oldest > horizon * 0.8 {
        let found = format!("the oldest open dead letter is {:.0} days old, dedupe rows are kept for {:.0}", days(oldest), days(horizon));
        return Ok(Finding::bad(
            "retention",
            Health::Warn,
            found,
            "counterfoil dead-letters list --oldest: replay or discard it before its dedupe row goes, or lengthen COUNTERFOIL_RETENTION_PROCESSED_DAYS",
        ));
    }
    Ok(Finding::ok("retention", format!("dedupe rows are kept for {:.0} days, the oldest open dead letter is {:.1} days old", days(horizon), days(oldest))))
}
