//! The store that a case runs on.

use std::{collections::VecDeque, sync::Mutex};

use onlyonce_testkit::servers::Postgres;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::harness::{Gateway, Setup, ms};

/// Where the gateway of one case keeps its keys.
pub(crate) enum Place {
    /// In its own folder.
    Sqlite,
    /// In the database of this URL.
    Postgres(String),
}

/// The places that there are: as many as cases run at once. Each case has one to itself.
pub(crate) struct Places {
    free: Mutex<VecDeque<Place>>,
    /// Lives as long as its databases are used.
    _server: Option<Postgres>,
}

impl Places {
    pub(crate) fn sqlite(count: usize) -> Self {
        let free = (0..count).map(|_| Place::Sqlite).collect();
        Self {
            free: Mutex::new(free),
            _server: None,
        }
    }

    /// Databases on one private server. To make and drop one for each case would cost more than the
    /// cases themselves; to empty one does not.
    pub(crate) fn postgres(count: usize) -> Self {
        // What dies here is gateways: no machine does, so nothing has to reach the disk.
        let server = Postgres::start_with(&["fsync=off", "full_page_writes=off"]);
        let free = (0..count).map(|number| server.database(&format!("place_{number}")));
        let free = free.map(Place::Postgres).collect();
        Self {
            free: Mutex::new(free),
            _server: Some(server),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.free.lock().unwrap().len()
    }

    /// An empty place.
    pub(crate) async fn take(&self) -> Place {
        let place = self.free.lock().unwrap().pop_front();
        let place = place.expect("as many places as cases at once");
        if let Place::Postgres(url) = &place {
            empty(url).await;
        }
        place
    }

    pub(crate) fn give_back(&self, place: Place) {
        self.free.lock().unwrap().push_back(place);
    }
}

/// Ends whoever is left of the last case, and removes all that it has written.
async fn empty(url: &str) {
    let mut connection = PgConnection::connect(url).await.expect("a connection");
    for sql in [
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "DROP SCHEMA IF EXISTS onlyonce CASCADE",
    ] {
        connection.execute(sql).await.expect("an empty database");
    }
}

/// Held until dropped.
#[expect(dead_code, reason = "what counts is when it is dropped")]
pub(crate) enum Held {
    Sqlite(rusqlite::Connection),
    Postgres(PgConnection),
}

impl Place {
    pub(crate) fn of(&self, setup: Setup) -> Setup {
        match self {
            Self::Sqlite => setup,
            Self::Postgres(url) => setup.store(url),
        }
    }

    /// From now on no reservation of `gateway` becomes durable, and nobody says so; when the held is
    /// dropped, those that were asked for do.
    pub(crate) async fn hold_reservations(&self, gateway: &Gateway) -> Held {
        match self {
            Self::Sqlite => {
                let path = gateway.folder().path().join("onlyonce.db");
                let connection = rusqlite::Connection::open(path).expect("the gateway's database");
                connection.busy_timeout(ms(1_000)).expect("a patient lock");
                connection
                    .execute_batch("BEGIN IMMEDIATE")
                    .expect("the write lock");
                Held::Sqlite(connection)
            }
            Self::Postgres(url) => Held::Postgres(hold_commits(url).await),
        }
    }
}

/// Within its commit the server no longer counts the time of a statement, and so does not take it
/// back. A plain lock would only make it fail in time, and surely.
async fn hold_commits(url: &str) -> PgConnection {
    let mut connection = PgConnection::connect(url).await.expect("a connection");
    let sql = "CREATE FUNCTION onlyonce.wait() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN WHILE NOT pg_try_advisory_xact_lock_shared(1) LOOP PERFORM pg_sleep(0.005); \
         END LOOP; RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON onlyonce.live DEFERRABLE \
         INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION onlyonce.wait(); \
         SELECT pg_advisory_lock(1)";
    connection.execute(sql).await.expect("the lock");
    connection
}
