/**
 * What the scripts hand to each other, as types. No browser loads this file.
 *
 * @typedef {import("./messages.js").Hello} Hello
 * @typedef {import("./messages.js").Screen} Screen
 * @typedef {import("./messages.js").Minute} Minute
 * @typedef {import("./messages.js").LogEntry} LogEntry
 * @typedef {import("./messages.js").Pulse} Pulse
 * @typedef {import("./messages.js").Signals} Signals
 * @typedef {import("./messages.js").FleetMap} FleetMap
 *
 * An empty text means: not filtered by this.
 *
 * @typedef {{engine: string, peer: string, field: string, node: string}} Filter
 *
 * A detail that can be opened.
 * @typedef {"request" | "peer" | "engine" | "condition" | "policy" | "policies" | "engines" | "events"} PanelKind a condition has its kind as its name
 * @typedef {{kind: PanelKind, engine: string, peer: string, id: string, name: string}} Panel
 *
 * `screen` is null where nothing is known of the moment; `minute` then has the journal's counts, if it has any.
 *
 * @typedef {object} Selection
 * @property {Screen | null} screen
 * @property {Screen | null} whole the same without the filter
 * @property {FleetMap | null} map of the moment; null where the tab has none so old
 * @property {string} unlisted the filter's engine, where the table of peers has others only; empty for none
 * @property {Minute | null} minute
 * @property {LogEntry[]} entries newest first
 * @property {MinuteCount[]} counts
 * @property {number} moment the time that is shown
 * @property {string} note what has to be known of a moment that is not now; empty where nothing has
 *
 * A time without connection; `to` is null while it lasts.
 * @typedef {{from: number, to: number | null}} Outage
 * @typedef {{time: number, failures: number, deferrals: number}} MinuteCount
 *
 * `clock` is the server's, estimated: the tab's clock and what the last message said it is off by (`skew`). `scrub` is the
 * time that is looked at, null for now. `seen` has the positions of the entries, so that none comes twice.
 * @typedef {object} State
 * @property {Hello | null} hello
 * @property {Screen | null} screen
 * @property {readonly Screen[]} screens
 * @property {readonly Minute[]} minutes
 * @property {Signals | null} signals of all engines together; null where the server has sent none
 * @property {readonly FleetMap[]} maps oldest first
 * @property {readonly LogEntry[]} entries oldest first
 * @property {ReadonlySet<string>} seen
 * @property {string} lastId
 * @property {Pulse | null} pulse
 * @property {boolean} connected
 * @property {string} reason why it is not connected, where the server said so
 * @property {string} refused what the server says of a token that is missing; "" while it needs none
 * @property {readonly Outage[]} outages
 * @property {readonly string[]} gaps
 * @property {number} skew
 * @property {number} clock
 * @property {number | null} scrub
 * @property {Filter} filter
 * @property {Panel | null} panel
 * @property {boolean} help
 *
 * `now` is the tab's clock when the action came.
 * @typedef {{type: "hello", hello: Hello, now: number}
 *   | {type: "screen", screen: Screen, now: number}
 *   | {type: "history", minutes: Minute[], now: number}
 *   | {type: "signals", signals: Signals, now: number}
 *   | {type: "map", map: FleetMap, now: number}
 *   | {type: "log", entries: LogEntry[], id: string, now: number}
 *   | {type: "earlier", entries: LogEntry[], now: number}
 *   | {type: "pulse", pulse: Pulse, now: number}
 *   | {type: "gap", sentence: string, id: string, now: number}
 *   | {type: "connected", now: number}
 *   | {type: "lost", reason: string, now: number}
 *   | {type: "refused", sentence: string}
 *   | {type: "tick", now: number}
 *   | {type: "scrub", time: number | null}
 *   | {type: "filter", part: Partial<Filter>}
 *   | {type: "clear"}
 *   | {type: "open", panel: Panel | null}
 *   | {type: "go", filter: Filter, panel: Panel | null}
 *   | {type: "help", help: boolean}} Action
 *
 * @typedef {Pick<EventSource, "addEventListener" | "close" | "readyState">} Source
 *
 * What a stream needs of the browser; tests hand over others.
 * @typedef {object} Surroundings
 * @property {(address: string) => Source} open
 * @property {(address: string) => Promise<string>} why it was refused for want of a token; "" if it was not
 * @property {() => number} now
 * @property {() => number} random from 0 to 1
 * @property {(run: () => void, milliseconds: number) => unknown} later
 * @property {(timer: any) => void} cancel
 *
 * What views do.
 *
 * @typedef {object} Act
 * @property {(part: Partial<Filter>) => void} filter
 * @property {() => void} clear
 * @property {(time: number | null) => void} scrub
 * @property {(panel: Panel | null) => void} open
 * @property {(help: boolean) => void} help
 *
 * @typedef {"rate" | "bytes" | "seconds" | "count" | "share"} Unit
 *
 * One line, or one layer of a stack. `colour` is a custom property of the style sheets, without its dashes; `key` that of the message, or of its
 * gates. An alarm is calm while it is 0.
 * @typedef {{name: string, unit: Unit, colour: string, key: string, dash?: number[], layer?: boolean, alarm?: boolean}} Series
 * @typedef {{id: string, title: string, hint: string, series: Series[]}} PlotKind
 *
 * `slot` is null where there is none of that time.
 * @typedef {{slot: number | null, time: number | null}} Reading
 *
 * @typedef {"begins" | "ends" | "policy" | "engine"} MarkKind
 * @typedef {{time: number, kind: MarkKind, text: string}} Mark
 * @typedef {(engine: string, peer: string) => boolean} Matches
 *
 * What the plots of a panel are drawn from: the tab's state, and the signals of its engine.
 * @typedef {{state: State, asked: {signals: Signals | null, error: string}}} Live
 *
 * @typedef {"policy" | "undo" | "pause" | "quarantine"} WriteKind
 * @typedef {{engine?: string, peer?: string, seconds?: number, undo?: boolean, name?: string, manifest?: string, changes?: Record<string, string>, generation?: number}} WriteBody
 *
 * `onCursor` is told the beginning of the slot under the cursor, null for none; `onPick` the one that is chosen.
 *
 * @typedef {object} PlotProps
 * @property {PlotKind} plot
 * @property {Signals} signals
 * @property {{from: number, to: number}} range
 * @property {readonly Mark[]} marks
 * @property {Reading} read
 * @property {number | null} scrub
 * @property {(time: number | null) => void} onCursor
 * @property {(time: number) => void} onPick
 */

export {};
