//! Checks that the servers still hold the store that was opened.
//!
//! One hash contains the store's secret, and every bucket a mark derived from it. Both are written when the
//! store is created, and never again unless the server may evict them. If one is missing, records are missing
//! with it. If one is another store's, the same key has another place.

use std::{collections::HashSet, sync::Arc};

use futures_util::{StreamExt as _, stream};
use onlyonce_core::{Secret, Timestamp};
use redis::Value;

use super::{
    Inner, OpenError, RedisStore, VERSION,
    failure::Failure,
    layout::{Bucket, Part},
    net::Does,
    scan::{bytes, items, strange},
    script::{Call, EPOCH, META, PROBE},
};
use crate::{Epoch, Standing, StoreError, Unfit, identity::STANDING};

/// Concurrent calls while buckets are marked.
const MARKS_AT_ONCE: usize = 64;

/// Reads the secret, the layout version, and whether every bucket was marked.
pub(super) fn read_meta(told: Value) -> Result<(Secret, u32, bool), OpenError> {
    let mut fields = items(told).map_err(|_| OpenError::Damaged)?.into_iter();
    let (secret, version) = (bytes(fields.next()), bytes(fields.next()));
    let is_marked = bytes(fields.next()).is_some();
    let (Some(secret), Some(version)) = (secret, version) else {
        return Err(OpenError::Empty);
    };
    let secret: [u8; 32] = secret.try_into().map_err(|_| OpenError::Damaged)?;
    let version = std::str::from_utf8(&version).ok();
    let version = version.and_then(|version| version.parse().ok());
    Ok((
        Secret::from_bytes(secret),
        version.ok_or(OpenError::Damaged)?,
        is_marked,
    ))
}

pub(super) fn mark(secret: &Secret) -> Vec<u8> {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, secret.as_bytes());
    digest.as_ref()[..8].to_vec()
}

/// Restores the secret and the marks after a server may have evicted them, before another gateway creates a
/// secret of its own. Only with `allow_eviction`: otherwise their loss is the loss of the records.
pub(super) async fn keep_meta(inner: Arc<Inner>) {
    loop {
        inner.net.connected.notified().await;
        let kept = async {
            inner.probe().await?;
            inner.mark_all().await
        };
        if let Err(error) = kept.await {
            tracing::warn!(%error, "the store cannot be written to after a new connection");
        }
    }
}

impl Inner {
    /// Checks that this is still the store that was opened, and that it takes writes.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        let call = match self.may_evict {
            true => META
                .call(&[self.names.meta()])
                .arg(&self.secret)
                .arg(VERSION),
            false => PROBE.call(&[self.names.meta()]).arg(&self.secret),
        };
        let told = self.net.call(self.meta_slot, &call, Does::Write).await;
        match read_meta(told.map_err(Failure::of_a_write)?) {
            Ok((secret, ..)) if *secret.as_bytes() == self.secret[..] => {}
            Err(OpenError::Empty) => return Err(lost()),
            _ => return Err(another_store()),
        }
        if self.may_evict {
            return Ok(());
        }
        // Emptying a server empties all its buckets, so one bucket per server is enough.
        for bucket in self.one_of_each_server() {
            self.check_mark(bucket).await?;
        }
        Ok(())
    }

    fn one_of_each_server(&self) -> Vec<Bucket> {
        let mut seen = HashSet::new();
        let owner = |bucket: &Bucket| self.net.owner(self.names.slot(*bucket));
        Bucket::all()
            .filter(|bucket| seen.insert(owner(bucket)))
            .collect()
    }

    /// Checks that a bucket is ours. With another secret the same key would have another id, in another
    /// bucket, and would be admitted again.
    async fn check_mark(&self, bucket: Bucket) -> Result<(), StoreError> {
        let call = Call::plain("GET").arg(self.names.part(bucket, Part::Mark));
        let found = self.net.call(self.names.slot(bucket), &call, Does::Read);
        match bytes(Some(found.await.map_err(Failure::of_a_read)?)) {
            Some(found) if found == self.mark => Ok(()),
            Some(_) => Err(another_store()),
            None => Err(lost()),
        }
    }

    /// Marks every bucket without a mark, refuses a bucket of another store, and records that all are marked.
    pub(super) async fn mark_all(&self) -> Result<(), StoreError> {
        let marks = Bucket::all().map(|bucket| async move {
            let (name, slot) = (self.names.part(bucket, Part::Mark), self.names.slot(bucket));
            let call = Call::plain("SETNX").arg(&name).arg(&self.mark);
            let set = self.net.call(slot, &call, Does::Write).await;
            match set.map_err(Failure::of_a_write)? {
                Value::Int(1) => Ok(()),
                _ => self.check_mark(bucket).await,
            }
        });
        let mut marks = stream::iter(marks).buffer_unordered(MARKS_AT_ONCE);
        while let Some(marked) = marks.next().await {
            marked?;
        }
        let call = Call::plain("HSET").arg(self.names.meta());
        let call = call.arg("marked").arg(1);
        let noted = self.net.call(self.meta_slot, &call, Does::Write).await;
        noted.map(|_| ()).map_err(Failure::of_a_write)
    }
}

impl RedisStore {
    /// The values of these fields of the meta hash.
    pub(super) async fn meta_fields<const N: usize>(
        inner: &Inner,
        fields: [&str; N],
    ) -> Result<[Option<Vec<u8>>; N], StoreError> {
        let mut call = Call::plain("HMGET").arg(inner.names.meta());
        for field in fields {
            call = call.arg(field);
        }
        let told = inner.net.call(inner.meta_slot, &call, Does::Read).await;
        let told = items(told.map_err(Failure::of_a_read)?)?;
        let mut values = told.into_iter().map(|value| bytes(Some(value)));
        Ok([(); N].map(|()| values.next().flatten()))
    }

    /// The store's identity, epoch and losses.
    pub(super) async fn read_standing(&self) -> Result<Standing, StoreError> {
        let values = Self::meta_fields(&self.inner, STANDING).await?;
        Ok(Standing::read(values.each_ref().map(Option::as_deref)))
    }

    /// Raises the epoch by one.
    pub(super) async fn raise(&self) -> Result<Epoch, StoreError> {
        let inner = &self.inner;
        let call = EPOCH.call(&[inner.names.meta()]).arg(&inner.secret);
        let told = inner.net.call(inner.meta_slot, &call, Does::Write).await;
        match bytes(Some(told.map_err(Failure::of_a_write)?)) {
            Some(text) => Epoch::read(&text).ok_or_else(strange),
            None => Err(lost()),
        }
    }

    /// Stores `value` in a field of the meta hash.
    pub(super) async fn keep_field(&self, field: &str, value: &[u8]) -> Result<(), StoreError> {
        let inner = &self.inner;
        let call = Call::plain("HSET").arg(inner.names.meta());
        let call = call.arg(field).arg(value);
        let kept = inner.net.call(inner.meta_slot, &call, Does::Write).await;
        kept.map(|_| ()).map_err(Failure::of_a_write)
    }

    /// Stores the server's time in a field of the meta hash.
    pub(super) async fn keep_time(&self, field: &str) -> Result<(), StoreError> {
        let now = self.server_time().await?;
        self.keep_field(field, now.0.to_string().as_bytes()).await
    }

    /// The server's time.
    async fn server_time(&self) -> Result<Timestamp, StoreError> {
        let inner = &self.inner;
        let call = Call::plain("TIME");
        let told = inner.net.call(inner.meta_slot, &call, Does::Read).await;
        let told = items(told.map_err(Failure::of_a_read)?)?;
        let number = |value: Option<&Value>| -> Option<i64> {
            let text = bytes(value.cloned())?;
            std::str::from_utf8(&text).ok()?.parse().ok()
        };
        let seconds = number(told.first()).ok_or_else(strange)?;
        let micros = number(told.get(1)).ok_or_else(strange)?;
        Ok(Timestamp(seconds * 1_000 + micros / 1_000))
    }
}

/// The database was emptied and another store was created in it.
pub(super) fn another_store() -> StoreError {
    let why = "what is in the database was made with another secret: it was emptied or restored while a \
               gateway ran; stop the gateways of this store, and start them again";
    StoreError::Unavailable(Unfit::forgot(why).into())
}

/// The database, or part of it, was emptied.
pub(super) fn lost() -> StoreError {
    let why = "the store has lost its records: its database was emptied, and retries of requests that \
               were executed before would execute again; what to do: restore the database, or empty all \
               of it, make a new store with `onlyonce migrate --store URL`, and start the gateways again";
    StoreError::Unavailable(Unfit::forgot(why).into())
}
