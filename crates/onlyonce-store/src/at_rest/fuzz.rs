//! Fuzzing of the blocks that answers become.

use std::sync::Arc;

use onlyonce_core::record::{StoredBody, StoredResponse};
use onlyonce_testkit::fuzz::Fuzz;

use super::*;
use crate::memory::MemoryStore;

const KEYS: &str = "a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

async fn store(keys: Option<&str>, compression: Compression) -> AtRest {
    let options = AtRestOptions {
        keys: keys.map(|keys| Keyring::parse(keys).unwrap()),
        compression,
    };
    let inner = Arc::new(MemoryStore::new());
    AtRest::open(inner, options).await.unwrap()
}

/// Answers that are short, long enough to be compressed, and not stored.
fn answers() -> Vec<Record> {
    let texts = [
        "{}".to_owned(),
        r#"{"status":"succeeded","id":1}"#.repeat(9),
    ];
    let mut records = crate::fuzz::records();
    let completed = records.pop().unwrap();
    let mut answers = vec![completed.clone()];
    for text in texts {
        let mut record = completed.clone();
        let plain = StoredResponse::plain(http::StatusCode::CREATED, text);
        record.response = Some(Arc::new(plain));
        answers.push(record);
    }
    let mut record = completed;
    let mut unstored = (**record.response.as_ref().unwrap()).clone();
    unstored.body = StoredBody::NotStored;
    record.response = Some(Arc::new(unstored));
    answers.push(record);
    answers
}

fn block(response: &StoredResponse) -> Vec<u8> {
    match &response.body {
        StoredBody::Packed { block, .. } => block.to_vec(),
        _ => Vec::new(),
    }
}

/// Goal: what says that it is encrypted is an answer only as it was written; what does not say so, and may
/// be from before there were keys, is an answer that can be written again, or an error.
#[tokio::test]
async fn blocks_of_answers() {
    let stores = [
        store(Some(KEYS), Compression::Zstd).await,
        store(Some(KEYS), Compression::None).await,
        store(None, Compression::Zstd).await,
    ];
    let records = answers();
    let mut sealed = Vec::new();
    for store in &stores {
        for record in &records {
            let response = record.response.as_ref().unwrap();
            let packed = store.pack("answer", record, response);
            let unpacked = store.unpack("answer", record, &packed).await.unwrap();
            assert_eq!(unpacked, *response);
            sealed.push(block(&packed));
        }
    }
    let record = &records[0];
    Fuzz::new("block of an answer", 40_000)
        .seeds(&sealed)
        .max_bytes(400)
        .run(|input| {
            let mut seen = Vec::new();
            for store in [&stores[0], &stores[2]] {
                let response = StoredResponse {
                    status: http::StatusCode::CREATED,
                    headers: http::HeaderMap::new(),
                    body: StoredBody::Packed {
                        block: input.to_vec().into(),
                        length: 0,
                    },
                };
                let answer = match store.try_unpack("answer", record, &Arc::new(response)) {
                    Ok(Unpacked::Answer(answer)) => answer,
                    Ok(Unpacked::Needs(_)) => {
                        seen.push((1, 0));
                        continue;
                    }
                    Err(error) => {
                        seen.push((2, error.to_string().len()));
                        continue;
                    }
                };
                if input[1] & 1 != 0 {
                    assert!(sealed.iter().any(|ours| ours == input), "forged");
                }
                let packed = store.pack("answer", record, &answer);
                let again = store.try_unpack("answer", record, &packed).unwrap();
                assert!(matches!(again, Unpacked::Answer(again) if again == answer));
                seen.push((3, usize::from(answer.body == StoredBody::NotStored)));
            }
            (seen, input.len() / 16)
        });
}
