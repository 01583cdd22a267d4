"""The kinds of panels that we use, each with its look settled once. What they show is said in `run` and `fleet`.

A panel's text says what it shows and, after "Bad:", what to do about it: whoever is woken up reads it there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = shapes.DataSourceRef(type_val="prometheus", uid="${datasource}")

GREEN, BLUE, SKY, VERMILLION = "#009E73", "#0072B2", "#56B4E9", "#D55E00"
ORANGE, YELLOW, PINK, GREY, DARK = "#E69F00", "#F0E442", "#CC79A7", "#999999", "#555555"
"""Okabe and Ito's colours: told apart by everyone. Training green, checkpoints blue, what is lost vermillion."""

BAD_IF_ANY = ((None, GREEN), (1, VERMILLION))
"""From which value on which colour, for what should stay at 0."""

AnyPanel = (
    bargauge.Panel
    | heatmap.Panel
    | stat.Panel
    | statetimeline.Panel
    | table.Panel
    | timeseries.Panel
)
P = TypeVar(
    "P",
    bargauge.Panel,
    heatmap.Panel,
    stat.Panel,
    statetimeline.Panel,
    table.Panel,
    timeseries.Panel,
)


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked, and how its series are named in the picture."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """What every panel has: its name, its text, its size on a grid of 24 columns."""

    title: str
    text: str
    width: int = 8
    height: int = 7


def chart(
    place: Place,
    queries: Sequence[Query],
    unit: str = "short",
    *,
    stacked: bool = False,
    stairs: bool = False,
    least: float | None = 0,
    most: float | None = None,
    colors: Mapping[str, str] | None = None,
    dashed: Sequence[str] = (),
    logarithmic: bool = False,
) -> timeseries.Panel:
    """Lines over time; `stacked` for parts of a whole, `stairs` for what only ever jumps."""
    panel = _asked(timeseries.Panel(), place, queries, instant=False).unit(unit)
    panel.legend(_legend()).tooltip(
        common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI)
    )
    panel.line_width(1).fill_opacity(70 if stacked else 0).show_points(shapes.VisibilityMode.AUTO)
    panel.span_nulls(_spans_gaps(stacked))
    if stacked:
        panel.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL).group("A"))
    if stairs:
        panel.line_interpolation(shapes.LineInterpolation.STEP_AFTER)
    if logarithmic:
        panel.scale_distribution(_logarithmic())
    elif least is not None:
        panel.min(least)
    if most is not None:
        panel.max(most)
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [_fixed(color)])
    for name in dashed:
        panel.override_by_name(name, [_fixed(VERMILLION), _dashes()])
    return panel


def strip(
    place: Place, queries: Sequence[Query], names: Sequence[tuple[str, str]], first: int = 1
) -> statetimeline.Panel:
    """One bar a series, coloured by what it is at each time: the value `first` + i is `names[i]`."""
    panel = _asked(statetimeline.Panel(), place, queries, instant=False)
    panel.legend(_legend()).show_value(shapes.VisibilityMode.NEVER).fill_opacity(90)
    panel.row_height(0.8).color_scheme(
        dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)
    )
    return panel.mappings([_mapped(names, first)])


def heat(place: Place, query: Query, unit: str) -> heatmap.Panel:
    """One row a series, darker where more."""
    panel = _asked(heatmap.Panel(), place, [query], instant=False)
    panel.calculate(False).color(_oranges()).cell_gap(0).show_legend()
    panel.filter_values(heatmap.FilterValueRange().le(-1))  # 0 is a value: a rank that is not late
    return panel.cell_values(heatmap.CellValues().unit(unit))


def figure(
    place: Place,
    query: Query,
    unit: str = "short",
    *,
    steps: Sequence[tuple[float | None, str]] = ((None, GREEN),),
    decimals: int | None = None,
    names: Sequence[tuple[str, str]] = (),
) -> stat.Panel:
    """One number, coloured by `steps`: from which value on which colour."""
    panel = _asked(stat.Panel(), place, [query], instant=True).unit(unit)
    panel.reduce_options(_last()).graph_mode(shapes.BigValueGraphMode.NONE)
    panel.color_mode(shapes.BigValueColorMode.VALUE).thresholds(_thresholds(steps))
    if decimals is not None:
        panel.decimals(decimals)
    return panel.mappings([_mapped(names, 1)]) if names else panel


def ranking(
    place: Place, query: Query, unit: str = "s", colors: Mapping[str, str] | None = None
) -> bargauge.Panel:
    """One horizontal bar a series."""
    panel = _asked(bargauge.Panel(), place, [query], instant=True).unit(unit).min(0)
    panel.orientation(shapes.VizOrientation.HORIZONTAL).reduce_options(_last())
    panel.display_mode(shapes.BarGaugeDisplayMode.BASIC).thresholds(_thresholds([(None, ORANGE)]))
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [_fixed(color)])
    return panel


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a label, or the value of a query."""

    title: str
    source: str
    """The label's name, or the query."""
    unit: str | None = None
    """Of a value; None for a label."""
    steps: Sequence[tuple[float | None, str]] = ()


def listing(place: Place, columns: Sequence[Column], link: str | None = None) -> table.Panel:
    """One row for each set of labels; `link` is where the first column leads."""
    values = [column for column in columns if column.unit is not None]
    panel = _asked(table.Panel(), place, [Query(column.source) for column in values], instant=True)
    panel.cell_options(shapes.TableAutoCellOptions())
    names = _names(columns)
    panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        model.DataTransformerConfig(id_val="organize", options=_organized(names, columns))
    )
    for column in values:
        panel.override_by_name(column.title, _shown(column))
    if link is not None:
        leads = [{"title": "Open the run", "url": link}]
        panel.override_by_name(columns[0].title, [model.DynamicConfigValue("links", leads)])
    return panel


def _names(columns: Sequence[Column]) -> Mapping[str, str]:
    """Grafana's name of each column, by its title."""
    values = [column.title for column in columns if column.unit is not None]
    single = len(values) == 1
    refs = {title: "Value" if single else f"Value #{_ref(i)}" for i, title in enumerate(values)}
    return {column.title: refs.get(column.title, column.source) for column in columns}


def _organized(names: Mapping[str, str], columns: Sequence[Column]) -> Mapping[str, Any]:
    return {
        "excludeByName": {"Time": True},
        "indexByName": {names[column.title]: place for place, column in enumerate(columns)},
        "renameByName": {names[column.title]: column.title for column in columns},
    }


def _shown(column: Column) -> list[model.DynamicConfigValue]:
    shown = [model.DynamicConfigValue("unit", column.unit)]
    if column.steps:
        steps = _thresholds(column.steps).build()
        shown.append(model.DynamicConfigValue("thresholds", steps))
        shown.append(model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    return shown


def _asked(panel: P, place: Place, queries: Sequence[Query], *, instant: bool) -> P:
    panel.title(place.title).description(place.text).span(place.width).height(place.height)
    panel.datasource(SOURCE)
    for number, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id(_ref(number)).datasource(SOURCE)
        target.legend_format(query.legend)
        if isinstance(panel, table.Panel):
            target.format(PromQueryFormat.TABLE)
        panel.with_target(target.instant() if instant else target.range())
    return panel


def _ref(number: int) -> str:
    return chr(ord("A") + number)


def _spans_gaps(stacked: bool) -> bool | float:
    """Whether a line goes on over a gap: parts of a whole do not, and nothing does over five minutes."""
    return False if stacked else 300_000.0


def _oranges() -> heatmap.HeatmapColorOptions:
    """Darker is more."""
    return (
        heatmap.HeatmapColorOptions()
        .mode(HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .steps(64)
        .min(0)
    )


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(shapes.LegendDisplayMode.LIST)
    return legend.placement(shapes.LegendPlacement.BOTTOM).show_legend(True).calcs([])


def _logarithmic() -> common.ScaleDistributionConfig:
    return common.ScaleDistributionConfig().type(shapes.ScaleDistribution.LOG).log(10)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _thresholds(steps: Sequence[tuple[float | None, str]]) -> dashboard.ThresholdsConfig:
    colored = [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(colored)


def _mapped(names: Sequence[tuple[str, str]], first: int) -> model.ValueMap:
    return model.ValueMap(
        options={
            str(first + place): model.ValueMappingResult(text=name, color=color, index=place)
            for place, (name, color) in enumerate(names)
        }
    )


def _fixed(color: str) -> model.DynamicConfigValue:
    return model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})


def _dashes() -> model.DynamicConfigValue:
    return model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 6]})
