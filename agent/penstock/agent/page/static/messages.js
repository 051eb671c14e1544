/**
 * What the page's server says, as types. docs/reference/page.md says what it promises.
 *
 * Times are milliseconds since 1970, durations seconds; all text is text, never markup.
 *
 * @typedef {"ok" | "idle" | "quarantined" | "slow" | "failing" | "incompatible" | "unreachable" | "lost" | "wrong_engine" | "hanging" | "other_weights" | "shared_id" | "none"} Condition
 * @typedef {"info" | "warning" | "error"} Severity
 *
 * @typedef {object} Hello
 * @property {string} version
 * @property {"agent" | "relay" | "bundle"} source the time of a bundle stands still
 * @property {string} name
 * @property {boolean} writable
 * @property {string} user
 * @property {"" | "needed" | "ended"} token whether a token that is valid, or another, would allow writes
 * @property {number} startTime
 *
 * @typedef {object} Evidence
 * @property {string} fact
 * @property {string} before
 *
 * @typedef {object} Cause
 * @property {string} kind
 * @property {string} sentence
 * @property {string} confidence
 * @property {string[]} engines
 * @property {string} peer
 * @property {Evidence[]} evidence
 * @property {string[]} alternatives
 * @property {string[]} commands
 *
 * @typedef {object} Verdict
 * @property {"ok" | "causes" | "unknown"} state
 * @property {string} sentence
 * @property {string} command
 * @property {number} computed
 * @property {Cause[]} causes
 * @property {string[]} looked
 * @property {string[]} missing
 * @property {number} leftOut
 *
 * @typedef {object} Banner
 * @property {string} kind
 * @property {Severity} severity
 * @property {string} sentence
 * @property {string} command
 * @property {number} leftOut
 *
 * @typedef {object} PeerCell
 * @property {string} engine
 * @property {Condition} condition
 * @property {string} text
 * @property {string} reason
 * @property {number} failuresLastMinute
 * @property {number | null} p99
 * @property {number | null} p99Before
 * @property {number} inFlight
 * @property {number} deferred
 * @property {string} command
 *
 * @typedef {object} PeerRow
 * @property {string} peer
 * @property {string} address
 * @property {Condition} worst
 * @property {string} command
 * @property {PeerCell[]} cells
 *
 * @typedef {object} Peers
 * @property {string[]} engines
 * @property {PeerRow[]} rows
 * @property {number | null} total
 * @property {number | null} leftOut
 * @property {string} sentence
 *
 * @typedef {object} Wait
 * @property {string} request
 * @property {string} engine
 * @property {string} peer
 * @property {string} reason
 * @property {number} since
 * @property {string} sentence
 * @property {string} command
 * @property {string} requestId as of a LogEntry
 *
 * @typedef {object} Waits
 * @property {Wait[]} rows
 * @property {number} total
 * @property {number} unnamed
 * @property {string} sentence
 *
 * @typedef {object} PolicyField
 * @property {string} field
 * @property {string} value
 * @property {string} policy
 * @property {string} author
 * @property {number | null} changed
 * @property {number} engines
 * @property {string[]} engineKeys
 * @property {boolean} inForce
 * @property {string} command
 *
 * @typedef {object} Engine
 * @property {string} key
 * @property {string} role
 * @property {string} model
 * @property {boolean} connected
 * @property {number | null} lastSeen
 * @property {string} policy
 * @property {string} sentence
 * @property {string} command
 *
 * @typedef {object} Screen
 * @property {number} now
 * @property {number} dataTime
 * @property {Verdict} verdict
 * @property {Banner[]} banners
 * @property {Peers} peers
 * @property {Waits} waits
 * @property {{rows: PolicyField[], total: number, sentence: string}} policy
 * @property {{rows: Engine[], total: number, leftOut: number}} engines
 *
 * @typedef {object} MinuteCell
 * @property {string} engine
 * @property {string} peer
 * @property {number} failures
 * @property {number} deferrals
 *
 * @typedef {{time: number, cells: MinuteCell[]}} Minute
 *
 * @typedef {object} LogEntry
 * @property {string} position of a relay with the agent before it; unique
 * @property {number} time
 * @property {string} engine
 * @property {string} peer
 * @property {string} request
 * @property {string} kind
 * @property {string} mode
 * @property {Severity} severity
 * @property {string} sentence
 * @property {string} command
 * @property {string} requestId the id where `request` shows it otherwise, for addresses only
 * @property {string[]} [policies] of a change of policy, the names of those that came, changed or went
 *
 * @typedef {object} Agents
 * @property {number} asked
 * @property {number} answered
 * @property {{name: string, reason: string}[]} missing
 *
 * @typedef {{now: number, dataTime: number, agents: Agents}} Pulse
 *
 * One value for each slot; null where it is not known.
 * @typedef {(number | null)[]} Values
 *
 * @typedef {object} Signals
 * @property {string} engine the engine's key; "" for all together
 * @property {number} from the beginning of the first slot, a multiple of `step`
 * @property {number} step milliseconds of a slot
 * @property {boolean} whole whether it replaces what the tab has; else its slots do
 * @property {number} engines how many are summed up
 * @property {number} leftOut engines without room at their agent
 * @property {Values} known of how many engines a slot is known
 * @property {Values} requests that ended per second
 * @property {Values} ttftP50
 * @property {Values} ttftP99
 * @property {Record<string, Values>} gates mean seconds of a request at each; together the mean time to first token
 * @property {Values} running
 * @property {Values} waiting
 * @property {Values} loadsIn transfers that succeeded per second, into the engines
 * @property {Values} loadsOut the same, sent by them
 * @property {Values} bytesIn per second
 * @property {Values} bytesOut
 * @property {Values} failed share of the requests that ended, from 0 to 1
 * @property {Values} recomputed
 * @property {Values} held share of the KV blocks that no request computes with
 *
 * A node or a group of the map; `engines` and `peers` are the keys and the addresses that it stands for.
 * @typedef {{name: string, notes: string[], kind: "" | "group" | "away" | "trouble", engines: string[], peers: string[]}} MapBox
 *
 * @typedef {object} MapEdge
 * @property {string} source the name of a box
 * @property {string} target
 * @property {"ok" | "quiet" | "warning" | "error"} state
 * @property {string} dashes the pattern of its line
 * @property {number} width 1 to 8
 * @property {string[]} words the parts of its label
 * @property {string[]} cells its row of the table
 * @property {string} engine that says its condition; "" for a sum
 * @property {string} peer the address that it is about; "" for a sum
 *
 * @typedef {object} FleetMap
 * @property {number} now when its answers were asked for
 * @property {{title: string, boxes: MapBox[]}[]} columns
 * @property {string[]} headers of the table
 * @property {MapEdge[]} edges the worst first
 * @property {string} sentence what is left out
 *
 * @typedef {{sentence: string}} Gap
 * @typedef {{reason: string, sentence: string}} Bye
 *
 * What a click on a row of a detail opens.
 * @typedef {{kind: "request" | "peer" | "engine" | "policy", engine?: string, peer?: string, id?: string, name?: string}} Link
 *
 * @typedef {object} TableSection
 * @property {"table"} kind
 * @property {string} title
 * @property {string[]} columns
 * @property {{cells: string[], command?: string, link?: Link | null}[]} rows
 * @property {string} sentence
 * @property {boolean} [folded] a click opens it
 *
 * @typedef {object} WaterfallRow
 * @property {string} side
 * @property {string} name
 * @property {number} start
 * @property {number} end
 * @property {string} text
 * @property {"ok" | "error" | "wait" | "open"} state
 * @property {{gate: string, start: number, end: number}[]} [gates] of a request, before its first token: how long, not when
 *
 * @typedef {object} WaterfallSection
 * @property {"waterfall"} kind
 * @property {string} title
 * @property {number} start
 * @property {number} end
 * @property {WaterfallRow[]} rows
 * @property {string} sentence
 *
 * @typedef {{kind: "text", title: string, text: string, folded?: boolean}} TextSection
 *
 * One of the signals: of an engine, or with "" of all together.
 * @typedef {{kind: "plot", title: string, plot: "requests" | "ttft" | "queue" | "loads" | "failed" | "held", engine: string, sentence: string}} PlotSection
 *
 * Failures and deferrals per minute; "" for all engines, or all peers.
 * @typedef {{kind: "minutes", title: string, engine: string, peer: string, sentence: string}} MinutesSection
 *
 * @typedef {TableSection | WaterfallSection | TextSection | PlotSection | MinutesSection} Section
 *
 * @typedef {object} Detail
 * @property {string} title
 * @property {string[]} sentences
 * @property {string} command
 * @property {Section[]} sections
 * @property {string} [manifest]
 * @property {number} [generation]
 * @property {string} [traceUrl]
 * @property {EditField[]} [fields] of a policy's form
 *
 * @typedef {object} EditField
 * @property {string} path below `spec`
 * @property {string} section the path without its last name; "" for a field of `spec` itself
 * @property {string} about what the section is for
 * @property {"duration" | "count" | "share" | "factor" | "choice" | "text" | "yaml"} kind "yaml" has no input
 * @property {string[]} choices
 * @property {number | null} least
 * @property {number | null} most
 * @property {string} pattern
 * @property {string} bounds in words
 * @property {string} unit
 * @property {string} meaning
 * @property {string} default "" where another policy or vLLM decides
 * @property {string} value "" where it is not set
 *
 * @typedef {{manifest: string, fields: EditField[]}} Draft
 *
 * @typedef {{sentence: string, sentences: string[], sections: Section[], command: string}} WriteAnswer
 */

export {};
