//! What the upstream does with one request, step by step.

use std::time::Duration;

/// One thing the upstream does after it has read a request.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write(Vec<u8>),
    /// Waits for one `Upstream::release`.
    Hold,
    Pause(Duration),
    /// Waits for more to arrive on this connection, or for its end.
    MoreComes,
    /// Closes in good order.
    Close,
    /// Closes with a reset.
    Reset,
}

#[derive(Clone, Debug)]
enum Payload {
    /// `{"execution":N}`: a body that betrays a second execution.
    Numbered,
    Length(Vec<u8>),
    Chunked(Vec<Vec<u8>>),
    Nothing,
    /// Steps instead of a whole answer.
    Steps(Vec<Step>),
}

/// The part the upstream plays for one request.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    before: Vec<Step>,
    status: u16,
    headers: Vec<(String, String)>,
    payload: Payload,
    trailers: Vec<(String, String)>,
    after: Vec<Step>,
}

impl Script {
    /// An answer with this status whose JSON body carries the number of the execution.
    pub(crate) fn reply(status: u16) -> Self {
        Self {
            before: Vec::new(),
            status,
            headers: Vec::new(),
            payload: Payload::Numbered,
            trailers: Vec::new(),
            after: Vec::new(),
        }
    }

    /// 201 with a numbered body.
    pub(crate) fn created() -> Self {
        Self::reply(201)
    }

    /// Any bytes, pauses and ends, in this order.
    pub(crate) fn steps(steps: Vec<Step>) -> Self {
        Self {
            payload: Payload::Steps(steps),
            ..Self::reply(0)
        }
    }

    /// Reads the request, then closes without a word.
    pub(crate) fn hang_up() -> Self {
        Self::steps(vec![Step::Close])
    }

    /// Reads the request, then resets the connection.
    pub(crate) fn reset() -> Self {
        Self::steps(vec![Step::Reset])
    }

    /// Promises `declared` bytes, sends `sent`, closes.
    pub(crate) fn truncated(declared: usize, sent: &[u8]) -> Self {
        let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {declared}\r\n\r\n");
        let bytes = [head.as_bytes(), sent].concat();
        Self::steps(vec![Step::Write(bytes), Step::Close])
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A body with its Content-Length.
    pub(crate) fn body(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.payload = Payload::Length(bytes.as_ref().to_vec());
        self
    }

    /// Neither a body nor a Content-Length.
    pub(crate) fn no_body(mut self) -> Self {
        self.payload = Payload::Nothing;
        self
    }

    pub(crate) fn chunks<B: AsRef<[u8]>>(mut self, chunks: impl IntoIterator<Item = B>) -> Self {
        let chunks = chunks
            .into_iter()
            .map(|chunk| chunk.as_ref().to_vec())
            .collect();
        self.payload = Payload::Chunked(chunks);
        self
    }

    /// A trailer, announced in the head; for chunked bodies.
    pub(crate) fn trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push((name.to_owned(), value.to_owned()));
        self.header("Trailer", name)
    }

    /// Nothing is answered before a release.
    pub(crate) fn held(mut self) -> Self {
        self.before.push(Step::Hold);
        self
    }

    /// Nothing is answered before this time has passed.
    pub(crate) fn delayed(mut self, time: Duration) -> Self {
        self.before.push(Step::Pause(time));
        self
    }

    /// An interim answer before the final one.
    pub(crate) fn interim(mut self, status: u16) -> Self {
        let head = format!("HTTP/1.1 {status} Interim\r\nLink: </early>\r\n\r\n");
        self.before.push(Step::Write(head.into_bytes()));
        self
    }

    /// Closes after the answer without having said so.
    pub(crate) fn then_close(mut self) -> Self {
        self.after.push(Step::Close);
        self
    }

    /// The steps that play this script as execution number `number`.
    pub(crate) fn play(self, number: usize) -> Vec<Step> {
        let mut steps = self.before;
        let mut headers = self.headers;
        let (mut json, mut length) = (None, None);
        let mut body = Vec::new();
        match self.payload {
            Payload::Steps(own) => {
                steps.extend(own);
                return steps;
            }
            Payload::Nothing => {}
            Payload::Numbered => {
                body = format!("{{\"execution\":{number}}}").into_bytes();
                json = Some(("Content-Type".to_owned(), "application/json".to_owned()));
                length = Some(body.len());
            }
            Payload::Length(bytes) => {
                length = Some(bytes.len());
                body = bytes;
            }
            Payload::Chunked(chunks) => {
                headers.push(("Transfer-Encoding".to_owned(), "chunked".to_owned()));
                for chunk in chunks {
                    body.extend(format!("{:x}\r\n", chunk.len()).bytes());
                    body.extend(chunk);
                    body.extend(b"\r\n");
                }
                body.extend(b"0\r\n");
                body.extend(lines(&self.trailers).bytes());
                body.extend(b"\r\n");
            }
        }
        headers.extend(json);
        headers.extend(length.map(|length| ("Content-Length".to_owned(), length.to_string())));
        let head = format!(
            "HTTP/1.1 {} Scripted\r\n{}\r\n",
            self.status,
            lines(&headers)
        );
        steps.push(Step::Write([head.into_bytes(), body].concat()));
        steps.extend(self.after);
        steps
    }
}

fn lines(headers: &[(String, String)]) -> String {
    headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect()
}
