#include "api/e2b/envd-proto.h"

#include <string.h>

#include "base/macros.h"

/* Numbers and names are those of E2B's process.proto and filesystem.proto. */
#define MESSAGE(symbol, ...)                                                                       \
    static const struct proto_field symbol##_fields[] = {__VA_ARGS__};                             \
    static const struct proto_message symbol = {symbol##_fields, ARRAY_SIZE(symbol##_fields)}

/* A row: its number, its name and what it holds. */
#define ROW(n, key, what) .number = (n), .name = (key), .kind = (what)
#define TEXT(n, key) ROW(n, key, PROTO_STRING)
#define TEXTS(n, key) ROW(n, key, PROTO_STRING), .shape = PROTO_LIST
#define MAP(n, key) ROW(n, key, PROTO_STRING), .shape = PROTO_MAP
#define BLOB(n, key) ROW(n, key, PROTO_BYTES)
#define FLAG(n, key) ROW(n, key, PROTO_BOOL)
#define UINT(n, key) ROW(n, key, PROTO_UINT32)
#define ENUM(n, key, of) ROW(n, key, PROTO_ENUM), .names = &(of)
#define SUB(n, key, of) ROW(n, key, PROTO_MESSAGE), .message = &(of)
#define SUBS(n, key, of) SUB(n, key, of), .shape = PROTO_LIST
#define ONE(...) __VA_ARGS__, .oneof = true /* a member of the message's oneof */

static const struct proto_message nothing = {0};

/* ---- process.proto ---- */

static const char *const signal_names[] = {[9] = "SIGNAL_SIGKILL", [15] = "SIGNAL_SIGTERM"};
static const struct proto_enum signals = {signal_names, ARRAY_SIZE(signal_names)};

MESSAGE(pty_size, {UINT(1, "cols")}, {UINT(2, "rows")});
MESSAGE(pty, {SUB(1, "size", pty_size)});
MESSAGE(config, {TEXT(1, "cmd")}, {TEXTS(2, "args")}, {MAP(3, "envs")}, {TEXT(4, "cwd")});
MESSAGE(selector, {ONE(UINT(1, "pid"))}, {ONE(TEXT(2, "tag"))});
MESSAGE(input, {ONE(BLOB(1, "stdin"))}, {ONE(BLOB(2, "pty"))});

MESSAGE(of_process, {SUB(1, "process", selector)});
MESSAGE(info, {SUB(1, "config", config)}, {UINT(2, "pid")}, {TEXT(3, "tag")});
MESSAGE(list_answer, {SUBS(1, "processes", info)});
MESSAGE(start, {SUB(1, "process", config)}, {SUB(2, "pty", pty)}, {TEXT(3, "tag")},
        {FLAG(4, "stdin")});
MESSAGE(update, {SUB(1, "process", selector)}, {SUB(2, "pty", pty)});
MESSAGE(send_input, {SUB(1, "process", selector)}, {SUB(2, "input", input)});
MESSAGE(send_signal, {SUB(1, "process", selector)}, {ENUM(2, "signal", signals)});

MESSAGE(stream_data, {SUB(2, "input", input)});
MESSAGE(stream_input, {ONE(SUB(1, "start", of_process))}, {ONE(SUB(2, "data", stream_data))},
        {ONE(SUB(3, "keepalive", nothing))});

MESSAGE(start_event, {UINT(1, "pid")});
MESSAGE(data_event, {ONE(BLOB(1, "stdout"))}, {ONE(BLOB(2, "stderr"))}, {ONE(BLOB(3, "pty"))});
MESSAGE(end_event, {ROW(1, "exitCode", PROTO_SINT32)}, {FLAG(2, "exited")}, {TEXT(3, "status")},
        {TEXT(4, "error")});
MESSAGE(process_event, {ONE(SUB(1, "start", start_event))}, {ONE(SUB(2, "data", data_event))},
        {ONE(SUB(3, "end", end_event))}, {ONE(SUB(4, "keepalive", nothing))});
MESSAGE(start_answer, {SUB(1, "event", process_event)});

/* ---- filesystem.proto ---- */

static const char *const type_names[] = {"FILE_TYPE_UNSPECIFIED", "FILE_TYPE_FILE",
                                         "FILE_TYPE_DIRECTORY", "FILE_TYPE_SYMLINK"};
static const struct proto_enum types = {type_names, ARRAY_SIZE(type_names)};
static const char *const event_names[] = {"EVENT_TYPE_UNSPECIFIED", "EVENT_TYPE_CREATE",
                                          "EVENT_TYPE_WRITE",       "EVENT_TYPE_REMOVE",
                                          "EVENT_TYPE_RENAME",      "EVENT_TYPE_CHMOD"};
static const struct proto_enum events = {event_names, ARRAY_SIZE(event_names)};

MESSAGE(entry, {TEXT(1, "name")}, {ENUM(2, "type", types)}, {TEXT(3, "path")},
        {ROW(4, "size", PROTO_INT64)}, {UINT(5, "mode")}, {TEXT(6, "permissions")},
        {TEXT(7, "owner")}, {TEXT(8, "group")}, {ROW(9, "modifiedTime", PROTO_TIME)},
        {TEXT(10, "symlinkTarget")}, {MAP(11, "metadata")});
MESSAGE(of_path, {TEXT(1, "path")});
MESSAGE(entry_answer, {SUB(1, "entry", entry)});
MESSAGE(move, {TEXT(1, "source")}, {TEXT(2, "destination")});
MESSAGE(list_dir, {TEXT(1, "path")}, {UINT(2, "depth")});
MESSAGE(list_dir_answer, {SUBS(1, "entries", entry)});
MESSAGE(watch, {TEXT(1, "path")}, {FLAG(2, "recursive")}, {FLAG(3, "includeEntry")},
        {FLAG(4, "allowNetworkMounts")});
MESSAGE(fs_event, {TEXT(1, "name")}, {ENUM(2, "type", events)}, {SUB(3, "entry", entry)});
MESSAGE(watch_answer, {ONE(SUB(1, "start", nothing))}, {ONE(SUB(2, "filesystem", fs_event))},
        {ONE(SUB(3, "keepalive", nothing))});
MESSAGE(watcher, {TEXT(1, "watcherId")});
MESSAGE(watcher_events, {SUBS(1, "events", fs_event)});

/* ---- calls ---- */

#define PROCESS "/process.Process/"
#define FILESYSTEM "/filesystem.Filesystem/"

const struct envd_rpc envd_rpcs[] = {
    {PROCESS "List", &nothing, &list_answer},
    {PROCESS "Connect", &of_process, &start_answer},
    {PROCESS "Start", &start, &start_answer},
    {PROCESS "Update", &update, &nothing},
    {PROCESS "StreamInput", &stream_input, &nothing},
    {PROCESS "SendInput", &send_input, &nothing},
    {PROCESS "SendSignal", &send_signal, &nothing},
    {PROCESS "CloseStdin", &of_process, &nothing},
    {FILESYSTEM "Stat", &of_path, &entry_answer},
    {FILESYSTEM "MakeDir", &of_path, &entry_answer},
    {FILESYSTEM "Move", &move, &entry_answer},
    {FILESYSTEM "ListDir", &list_dir, &list_dir_answer},
    {FILESYSTEM "Remove", &of_path, &nothing},
    {FILESYSTEM "WatchDir", &watch, &watch_answer},
    {FILESYSTEM "CreateWatcher", &watch, &watcher},
    {FILESYSTEM "GetWatcherEvents", &watcher, &watcher_events},
    {FILESYSTEM "RemoveWatcher", &watcher, &nothing},
};
const size_t envd_rpcs_count = ARRAY_SIZE(envd_rpcs);

const struct envd_rpc *envd_rpc_find(const char *path)
{
    for (size_t i = 0; i < envd_rpcs_count; i++) {
        if (strcmp(envd_rpcs[i].path, path) == 0)
            return &envd_rpcs[i];
    }
    return NULL;
}
