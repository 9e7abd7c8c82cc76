"""One attempt to deliver a message to a target over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable

from rankscope.alerts.deliver.endpoint import connected
from rankscope.alerts.deliver.post import JSON, DeliveryError, NoAnswerError, post
from rankscope.alerts.deliver.retrying import AttemptResult, judge_status, not_answered
from rankscope.alerts.deliver.secret import SecretUnavailableError
from rankscope.alerts.deliver.signing import ID_HEADER, SecretError, parse_secret, sign
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.deliver.templates import TEMPLATES


class HttpCourier:
    """Deliver messages to a target over HTTP. ``wall`` returns seconds since 1970."""

    def __init__(self, target: Target, *, wall: Callable[[], float] = time.time) -> None:
        self._target = target
        self._wall = wall

    def attempt(self, message_id: str, payload: bytes) -> AttemptResult:
        """POST the rendered and signed message."""
        target = self._target
        try:
            with connected(target) as connection:
                key = "" if target.routing_key is None else target.routing_key.read()
                body = TEMPLATES[target.template](payload, key)
                headers = {**JSON, **self._signature(message_id, body), **connection.headers}
                answer = post(connection.client, connection.url, body, headers=headers, attempt_s=target.timeout_s)
        except (SecretUnavailableError, SecretError) as error:
            return not_answered(str(error), sent=False)
        except NoAnswerError as error:
            return not_answered(str(error), sent=error.sent, late=error.late)
        except DeliveryError as error:
            return not_answered(str(error), sent=False)
        return judge_status(answer.status, retry_after=answer.retry_after, date=answer.date, wall_s=self._wall())

    def _signature(self, message_id: str, body: bytes) -> dict[str, str]:
        if not self._target.secrets:
            return {ID_HEADER: message_id}
        keys = [parse_secret(secret.read()) for secret in self._target.secrets]
        return sign(keys, message_id=message_id, timestamp_s=int(self._wall()), body=body)
