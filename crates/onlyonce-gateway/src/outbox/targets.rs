//! Builds a delivery target from its configuration.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use http::Uri;
use onlyonce::outbox::{Publish, Target};
use onlyonce_publish::http::{Http, HttpOptions, Secrets};

use crate::{
    config::{BrokerConfig, HttpConfig, TargetConfig, WayConfig},
    upstream::{Upstream, UpstreamOptions},
};

/// The target that `config` describes. An HTTP target does not connect yet.
pub(super) async fn target(config: &TargetConfig) -> anyhow::Result<Target> {
    let publisher = match &config.way {
        WayConfig::Http(http) => over_http(http),
        WayConfig::Broker(broker) => over_broker(broker, config.timeout).await,
    };
    let publisher = publisher.with_context(|| format!("the target {}", config.name))?;
    Ok(Target {
        name: config.name.as_str().into(),
        publisher,
        rules: config.rules,
        at_once: config.at_once,
        timeout: config.timeout,
    })
}

/// Uses the same connections as requests to backends, which know whether a byte was sent.
fn over_http(config: &HttpConfig) -> anyhow::Result<Arc<dyn Publish>> {
    let backend = &config.url.backend;
    let url: Uri = format!(
        "{}://{}{}",
        backend.scheme(),
        backend.authority(),
        config.url.target
    )
    .parse()?;
    let mut options = HttpOptions::new(url);
    options.key_header = config.key_header.clone();
    options.headers = config.headers.clone();
    options.provider_id = Some(config.provider_id.clone());
    options.secret = match &config.secret_env {
        Some(name) => {
            let text = std::env::var(name).with_context(|| format!("{name} is not set"))?;
            let secrets = Secrets::parse(&text);
            Some(secrets.with_context(|| format!("{name} holds no usable secret"))?)
        }
        None => None,
    };
    let upstream = Upstream::new(UpstreamOptions::new(vec![backend.clone()]));
    Ok(Arc::new(Http::new(upstream, options)?))
}

#[cfg(not(any(feature = "nats", feature = "rabbitmq", feature = "kafka")))]
async fn over_broker(
    config: &BrokerConfig,
    _timeout: Duration,
) -> anyhow::Result<Arc<dyn Publish>> {
    anyhow::bail!("this program was built without {}", config.broker.word())
}

/// An unreachable broker does not prevent startup. A publisher's own waits end before `timeout`, so that an
/// unsent message is known to be unsent.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "kafka"))]
#[cfg_attr(
    not(any(feature = "rabbitmq", feature = "kafka")),
    expect(
        unused_variables,
        reason = "NATS knows at once whether it is connected"
    )
)]
async fn over_broker(config: &BrokerConfig, timeout: Duration) -> anyhow::Result<Arc<dyn Publish>> {
    use crate::config::Broker;
    use onlyonce_publish::Template;

    let place = Template::parse(&config.place)?;
    Ok(match config.broker {
        #[cfg(feature = "nats")]
        Broker::Nats => {
            use onlyonce_publish::nats::{Nats, NatsOptions};
            Arc::new(Nats::connect(NatsOptions::new(&config.url, place)).await?)
        }
        #[cfg(feature = "rabbitmq")]
        Broker::RabbitMq => {
            use onlyonce_publish::rabbitmq::{RabbitMq, RabbitMqOptions};
            let mut options = RabbitMqOptions::new(&config.url, &config.exchange, place);
            options.channel_within = options.channel_within.min(timeout / 2);
            Arc::new(RabbitMq::new(options)?)
        }
        #[cfg(feature = "kafka")]
        Broker::Kafka => {
            use onlyonce_publish::kafka::{DEFAULT_MESSAGE_TIMEOUT, Kafka, KafkaOptions};
            let mut options = KafkaOptions::new(&config.url, place);
            let within = DEFAULT_MESSAGE_TIMEOUT.min(timeout * 4 / 5);
            let within = (
                "message.timeout.ms".to_owned(),
                within.as_millis().to_string(),
            );
            options.settings.push(within);
            Arc::new(Kafka::new(options)?)
        }
        #[cfg(not(all(feature = "nats", feature = "rabbitmq", feature = "kafka")))]
        other => anyhow::bail!("this program was built without {}", other.word()),
    })
}
