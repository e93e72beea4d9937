//! What the table contains beside the records: the meta item, scopes, blocks and recipes.

use std::collections::HashMap;

use aws_sdk_dynamodb::{
    operation::{put_item::PutItemError, update_item::UpdateItemError},
    types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure},
};
use onlyonce_core::{RecordId, Secret, Timestamp, machine::History};

use super::{
    Inner, Item,
    layout::{
        DATA, META, META_ACCEPTED, META_EPOCH, META_EPOCH_AT, META_IDENTITY, META_LOST,
        META_LOST_NEWEST, META_PROBED, META_SECRET, NAME, PK, SK, blob, bytes_of, id_of, key,
        number, number_of, scope_key, scope_partition, strange, text, text_of,
    },
    net::{Came, refused},
};
use crate::{
    Epoch, Identity, Loss, SCOPES_AT_ONCE, Standing, StoreError, Unfit, identity::IDENTITY_BYTES,
    random_bytes,
};

/// The sort key of a block or a recipe.
const BLOCK: &str = "B";

impl Inner {
    /// Reads one current item.
    pub(super) async fn item(
        &self,
        partition: &str,
        sort: &str,
    ) -> Result<Option<Item>, StoreError> {
        let call = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(key(partition, sort)))
            .consistent_read(true);
        let found = self.read(|| Box::pin(call.clone().send())).await?;
        Ok(found.item)
    }

    /// Writes an item, replacing any earlier one.
    pub(super) async fn put(&self, item: Item) -> Result<(), StoreError> {
        let call = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item));
        self.write(|| Box::pin(call.clone().send())).await?;
        Ok(())
    }

    pub(super) async fn kept(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let item = self.item(name, BLOCK).await?;
        Ok(item.and_then(|item| bytes_of(&item, DATA).map(<[u8]>::to_vec)))
    }

    pub(super) async fn keep(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut item = key(name, BLOCK);
        item.insert(DATA.to_owned(), blob(bytes));
        self.put(item).await
    }

    /// Stores bytes unless there are some, and returns those that are stored.
    pub(super) async fn keep_once(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut item = key(name, BLOCK);
        item.insert(DATA.to_owned(), blob(bytes));
        let call = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression(format!("attribute_not_exists({PK})"))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match self.call(|| Box::pin(call.clone().send())).await? {
            Came::Done(_) => Ok(bytes.to_vec()),
            Came::Refused {
                error: PutItemError::ConditionalCheckFailedException(failed),
                ..
            } => match failed
                .item
                .and_then(|item| bytes_of(&item, DATA).map(<[u8]>::to_vec))
            {
                Some(found) => Ok(found),
                None => self.kept(name).await?.ok_or_else(|| {
                    StoreError::Unavailable("a block that was written is not there".into())
                }),
            },
            Came::Refused { error, in_doubt } => Err(refused(&error, in_doubt)),
        }
    }

    pub(super) async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        let (partition, sort) = scope_key(id);
        let mut item = key(partition, sort);
        item.insert(NAME.to_owned(), text(name));
        self.put(item).await
    }

    /// The next scopes in the order of their ids, from the first partition that has any.
    pub(super) async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Vec<(RecordId, String)>, StoreError> {
        let first = after.map_or(0, |id| id.0[0] >> 4);
        // After the sort key of `after`; empty for the start of a partition.
        let mut from = after.map_or_else(String::new, |id| scope_key(id).1);
        for part in first..16 {
            let call = self
                .client
                .query()
                .table_name(&self.table)
                .consistent_read(true)
                .key_condition_expression(format!("{PK} = :p AND {SK} > :s"))
                .expression_attribute_values(":p", text(scope_partition(part)))
                .expression_attribute_values(
                    ":s",
                    text(match from.is_empty() {
                        // No sort key may be empty, and none of ours sorts before this.
                        true => "!",
                        false => &from,
                    }),
                )
                .limit(i32::try_from(SCOPES_AT_ONCE).unwrap_or(i32::MAX));
            let found = self.read(|| Box::pin(call.clone().send())).await?;
            let scopes = found.items().iter().map(|item| {
                let id = id_of(text_of(item, SK)?)?;
                Ok((id, text_of(item, NAME)?.to_owned()))
            });
            let scopes: Vec<_> = scopes.collect::<Result<_, StoreError>>()?;
            if !scopes.is_empty() {
                return Ok(scopes);
            }
            from.clear();
        }
        Ok(Vec::new())
    }

    /// Sets attributes of the meta item, if it is still this store's.
    async fn set_meta(
        &self,
        expression: &str,
        values: &[(&str, AttributeValue)],
    ) -> Result<Item, StoreError> {
        let values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        let mut values: HashMap<String, AttributeValue> = values.collect();
        values.insert(":secret".to_owned(), blob(&self.secret[..]));
        let call = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(key(META, META)))
            .update_expression(expression)
            .condition_expression(format!("{META_SECRET} = :secret"))
            .set_expression_attribute_values(Some(values))
            .return_values(ReturnValue::UpdatedNew);
        match self.call(|| Box::pin(call.clone().send())).await? {
            Came::Done(done) => Ok(done.attributes.unwrap_or_default()),
            Came::Refused {
                error: UpdateItemError::ConditionalCheckFailedException(_),
                ..
            } => Err(lost()),
            Came::Refused { error, in_doubt } => Err(refused(&error, in_doubt)),
        }
    }

    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        self.keep_time(META_PROBED).await
    }

    /// A try whose answer was lost may raise the epoch twice; it only has to rise.
    pub(super) async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        let expression = format!(
            "SET {META_EPOCH} = if_not_exists({META_EPOCH}, :zero) + :one, {META_EPOCH_AT} = :now"
        );
        let now = self.time.now();
        let values = [
            (":zero", number(0)),
            (":one", number(1)),
            (":now", number(now.0)),
        ];
        let set = self.set_meta(&expression, &values).await?;
        Ok(Epoch {
            count: number_of(&set, META_EPOCH)?.ok_or_else(strange)?,
            at: now,
        })
    }

    pub(super) async fn accept_incomplete(&self) -> Result<(), StoreError> {
        self.keep_time(META_ACCEPTED).await
    }

    pub(super) async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        self.keep_time(match loss {
            Loss::Any => META_LOST,
            Loss::Newest => META_LOST_NEWEST,
        })
        .await
    }

    /// Stores the time in an attribute of the meta item.
    async fn keep_time(&self, attribute: &str) -> Result<(), StoreError> {
        let now = number(self.time.now().0);
        let expression = format!("SET {attribute} = :now");
        self.set_meta(&expression, &[(":now", now)]).await?;
        Ok(())
    }

    pub(super) async fn renew_identity(&self) -> Result<[u8; IDENTITY_BYTES], StoreError> {
        let own = random_bytes::<IDENTITY_BYTES>();
        let expression = format!("SET {META_IDENTITY} = :own");
        self.set_meta(&expression, &[(":own", blob(own))]).await?;
        Ok(own)
    }

    /// The store's identity, epoch and losses.
    pub(super) async fn standing(&self) -> Result<Standing, StoreError> {
        let meta = self.item(META, META).await?.unwrap_or_default();
        let secret: Option<[u8; 32]> =
            bytes_of(&meta, META_SECRET).and_then(|secret| secret.try_into().ok());
        let secret = secret.map(Secret::from_bytes);
        let own = bytes_of(&meta, META_IDENTITY);
        let epoch = match number_of(&meta, META_EPOCH)? {
            Some(count) => Some(Epoch {
                count,
                at: Timestamp(number_of(&meta, META_EPOCH_AT)?.ok_or_else(strange)?),
            }),
            None => None,
        };
        Ok(Standing {
            identity: secret.map(|secret| Identity::found(&secret, own).id()),
            epoch,
            history: History {
                lost_at: number_of(&meta, META_LOST)?.map(Timestamp),
                newest_lost_at: number_of(&meta, META_LOST_NEWEST)?.map(Timestamp),
                accepted_at: number_of(&meta, META_ACCEPTED)?.map(Timestamp),
            },
            numbered: None,
        })
    }
}

/// The table was emptied, or another store was created in it.
fn lost() -> StoreError {
    let why = "the table is not the store that this gateway has opened: it was emptied, restored or made anew, \
               and retries of requests that were executed before would execute again; what to do: restore the \
               table, or make a new store with `onlyonce migrate --store URL`, and start the gateways again";
    StoreError::Unavailable(Unfit::forgot(why).into())
}
