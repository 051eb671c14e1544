"""Each ``OTEL_*`` variable is honoured, refused with a sentence, or named as one without effect."""

from __future__ import annotations

import pytest
from opentelemetry.sdk import environment_variables
from penstock.agent.errors import ConfigError
from penstock.agent.traces.export.otel_variables import VARIABLES, Effect, effect_of
from penstock.agent.traces.export.otlp_config import ExportSettings

_OF_THE_SDK = sorted(name for name in vars(environment_variables) if name.startswith("OTEL_"))


@pytest.mark.parametrize("name", _OF_THE_SDK)
def test_every_variable_of_the_sdk_is_known(name):
    """None of those that OpenTelemetry's SDK documents is taken for a misspelt one."""
    assert "spelling" not in effect_of(name).reason


@pytest.mark.parametrize(
    "name", [variable.pattern for variable in VARIABLES if variable.effect is Effect.REFUSED]
)
def test_what_is_refused(name):
    """One sentence names the variable, why, and what to do; empty it counts as not set."""
    name = name.replace("*", "ENDPOINT")
    with pytest.raises(ConfigError, match=rf"^{name} is not supported: .*; unset it$"):
        ExportSettings.from_environment({name: "1"})
    assert ExportSettings.from_environment({name: ""}) == ExportSettings()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("OTEL_METRICS_EXPORTER", "the agent exports traces only; metrics are scraped"),
        ("OTEL_LOG_LEVEL", "--log-level sets the level of the agent's log"),
        ("OTEL_EXPORTER_OTLP_ENDPIONT", "the agent does not know it; check its spelling"),
    ],
)
def test_what_has_no_effect(name, reason):
    """It is named, and stops nothing."""
    assert ExportSettings.from_environment({name: "x"}).unused == (f"{name} has no effect: {reason}",)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("parentbased_always_on", 1.0)),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, ("always_on", 1.0)),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, ("traceidratio", 1.0)),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            ("parentbased_traceidratio", 0.25),
        ),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, ("traceidratio", 0.0)),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1e-3"}, ("traceidratio", 0.001)),
    ],
)
def test_samplers(environment, expected):
    """Sampler and ratio are those of the variables; OpenTelemetry's default without them."""
    settings = ExportSettings.from_environment(environment)
    assert (settings.sampler, settings.sampler_ratio) == expected


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "failed and recomputed requests are always exported"),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, "failed and recomputed requests are always"),
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "'jaeger_remote' is wrong: expected one of always_on, "),
        ({"OTEL_TRACES_SAMPLER_ARG": "0.1"}, "'0.1' has no effect on parentbased_always_on: set OTEL_"),
        *(
            (
                {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": text},
                "is wrong: expected a number from 0 to 1",
            )
            for text in ("1.1", "-0.1", "ten", "nan", "\u0660")
        ),
        ({"OTEL_BSP_SCHEDULE_DELAY": "5"}, "'5' is wrong: expected milliseconds, from 100 to 60000"),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "0"}, "'0' is wrong: expected a number of spans, from 1 to 4096"),
        ({"OTEL_SDK_DISABLED": "yes"}, "'yes' is wrong: expected true or false"),
        ({"OTEL_EXPORTER_OTLP_INSECURE": "1"}, "'1' is wrong: expected true or false"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b,c"}, "'c' is wrong: expected name=value,name=value"),
        ({"OTEL_SPAN_LINK_COUNT_LIMIT": "-1"}, "'-1' is wrong: expected a whole number, from 0 to "),
    ],
)
def test_values_that_are_refused(environment, sentence):
    """One sentence names the variable, the value and what is expected."""
    with pytest.raises(ConfigError) as caught:
        ExportSettings.from_environment(environment)
    assert str(caught.value).startswith(list(environment)[-1])
    assert sentence in str(caught.value)


def test_the_batch_variables():
    """The size of a call and the pause at the end of the log are those of the batch processor's variables."""
    settings = ExportSettings.from_environment(
        {"OTEL_BSP_SCHEDULE_DELAY": "5000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64"}
    )
    assert (settings.schedule_delay, settings.batch_size) == (5.0, 64)
