/* A driver stand-in with the symbols and struct layouts of nvml.h, for the real Python bindings.

   Its state is the text file $FAKE_NVML, read again at each call: a line "driver key=value …" and a line "gpu key=value …"
   for each card; keys that are missing have defaults. Events are lines "gpu xid gpu_instance" appended to $FAKE_NVML.xids.
   With -DOLD the symbols of drivers before 510 are all there is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Return;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct Handle *Device;

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10 };
static char lines[16][512], head[512];
static int count;

static void load(void) {
    char line[512];
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    count = 0;
    head[0] = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = ' ';
        if (!strncmp(line, "driver", 6)) strcpy(head, line);
        if (!strncmp(line, "gpu", 3) && count < 16) strcpy(lines[count++], line);
    }
    fclose(file);
}

static const char *find(const char *line, const char *key) {
    char word[64];
    snprintf(word, sizeof word, " %s=", key);
    const char *at = strstr(line, word);
    return at ? at + strlen(word) : NULL;
}

static u64 number(const char *line, const char *key, u64 otherwise) {
    const char *at = find(line, key);
    return at ? strtoull(at, NULL, 0) : otherwise;
}

static void text(const char *line, const char *key, const char *otherwise, char *to, u32 room) {
    const char *at = find(line, key);
    snprintf(to, room, "%.*s", at ? (int)strcspn(at, " ") : (int)strlen(otherwise), at ? at : otherwise);
}

/* A handle is card * 100 + 1, and that plus the number of a MIG instance from 1 on. */
static int card_of(Device device) { return (int)((long)device - 1) / 100; }
static int part_of(Device device) { return (int)((long)device - 1) % 100; }

static Return enter(Device device, const char **line) {
    load();
    u64 delay = number(head, "delay_ms", 0);
    while (number(head, "hang", 0)) { usleep(20000); load(); }
    if (delay) usleep(delay * 1000);
    if (number(head, "fails", 0)) return (Return)number(head, "fails", 0);
    if (card_of(device) >= count) return INVALID;
    *line = lines[card_of(device)];
    return (Return)number(*line, "fails", 0);
}

#define CARD const char *line; Return failed = enter(device, &line); if (failed) return failed
#define WHOLE CARD; if (part_of(device)) return NOT_SUPPORTED
#define GET(key, otherwise) number(line, key, otherwise)

const char *nvmlErrorString(Return code) {
    static char words[32];
    snprintf(words, sizeof words, "fake error %d", code);
    return words;
}
Return nvmlInit_v2(void) { load(); return (Return)number(head, "init", count || head[0] ? 0 : 9); }
Return nvmlInitWithFlags(u32 flags) { return nvmlInit_v2(); }
Return nvmlShutdown(void) { return OK; }
Return nvmlSystemGetDriverVersion(char *to, u32 room) { load(); text(head, "version", "580.95.05", to, room); return OK; }
Return nvmlSystemGetProcessName(u32 pid, char *to, u32 room) { snprintf(to, room, "process-%u", pid); return OK; }
Return nvmlDeviceGetCount_v2(u32 *to) { load(); *to = (u32)count; return OK; }
Return nvmlDeviceGetHandleByIndex_v2(u32 index, Device *to) {
    load();
    if (index >= (u32)count) return INVALID;
    *to = (Device)(long)(index * 100 + 1);
    return (Return)number(lines[index], "fails", 0);
}
Return nvmlDeviceGetName(Device device, char *to, u32 room) { CARD; text(line, "name", "NVIDIA-H200", to, room); return OK; }
Return nvmlDeviceGetUUID(Device device, char *to, u32 room) {
    CARD;
    char uuid[80];
    snprintf(uuid, sizeof uuid, "GPU-%08d-fa4e-0000-0000-000000000000", card_of(device));
    if (part_of(device)) snprintf(to, room, "MIG-%08d-000%d-0000-0000-000000000000", card_of(device), part_of(device));
    else text(line, "uuid", uuid, to, room);
    return OK;
}
Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) { CARD; *major = 9; *minor = 0; return OK; }
Return nvmlDeviceGetMigMode(Device device, u32 *now, u32 *later) { WHOLE; *now = *later = GET("mig", 0) > 0; return OK; }
Return nvmlDeviceGetMaxMigDeviceCount(Device device, u32 *to) { WHOLE; *to = GET("mig", 0) ? 7 : 0; return OK; }
Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, u32 index, Device *to) {
    WHOLE;
    if (index >= GET("mig", 0)) return NOT_FOUND;
    *to = (Device)((long)device + index + 1);
    return OK;
}
Return nvmlDeviceGetGpuInstanceId(Device device, u32 *to) { CARD; *to = (u32)part_of(device); return OK; }
Return nvmlDeviceGetComputeInstanceId(Device device, u32 *to) { CARD; *to = 0; return OK; }

static void memory(Device device, const char *line, u64 *total, u64 *used) {
    *total = GET("total", 143771) << 20;
    *used = GET("used", 1000) << 20;
    if (part_of(device)) { *total /= 7; *used /= 10; }
}
Return nvmlDeviceGetMemoryInfo(Device device, u64 *to) {
    CARD;
    memory(device, line, &to[0], &to[2]);
    to[1] = to[0] - to[2];
    return OK;
}
Return nvmlDeviceGetPowerUsage(Device device, u32 *to) { WHOLE; *to = (u32)GET("power", 120500); return OK; }
Return nvmlDeviceGetEnforcedPowerLimit(Device device, u32 *to) { WHOLE; *to = (u32)GET("limit", 700000); return OK; }
Return nvmlDeviceGetTemperature(Device device, int sensor, u32 *to) { WHOLE; *to = (u32)GET("temp", 41); return OK; }
Return nvmlDeviceGetClockInfo(Device device, int kind, u32 *to) {
    WHOLE;
    *to = kind == 1 ? (u32)GET("sm", 1980) : kind == 2 ? (u32)GET("mem", 3201) : 7;
    return OK;
}
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device device, u64 *to) { WHOLE; *to = GET("events", 1); return OK; }
Return nvmlDeviceGetUtilizationRates(Device device, u32 *to) {
    WHOLE;
    if (GET("mig", 0)) return NOT_SUPPORTED;
    to[0] = (u32)GET("util", 0);
    to[1] = (u32)GET("memutil", 0);
    return OK;
}
Return nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, u64 *to) {
    WHOLE;
    if (GET("ecc_off", 0)) return NOT_SUPPORTED;
    *to = counter != 0 ? 999 : kind == 0 ? GET("corrected", 0) : GET("uncorrected", 0);
    return OK;
}
Return nvmlDeviceGetPcieReplayCounter(Device device, u32 *to) { WHOLE; *to = (u32)GET("replays", 0); return OK; }
typedef struct { u32 field, scope; long long timestamp, latency; u32 type; Return code; union { u32 ui; u64 ull; } value; } Field;
Return nvmlDeviceGetFieldValues(Device device, int number_of, Field *to) {
    WHOLE;
    for (int i = 0; i < number_of; i++) {
        to[i].code = to[i].field == 82 ? OK : NOT_SUPPORTED;  /* NVML_FI_DEV_MEMORY_TEMP */
        to[i].value.ui = (u32)GET("memtemp", 47);
    }
    return OK;
}
typedef struct { u32 pid; u64 used; u32 gpu_instance, compute_instance; } Process;
Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, u32 *room, Process *to) {
    CARD;
    u32 wanted = (u32)GET("processes", 0);
    if (*room < wanted) { *room = wanted; return SMALL; }
    for (u32 i = 0; i < wanted; i++) {
        to[i].pid = (u32)GET("pid", 4000) + i;
        to[i].used = GET("hidden", 0) ? ~0ull : (GET("used", 1000) << 20) / wanted;
        to[i].gpu_instance = to[i].compute_instance = ~0u;
    }
    *room = wanted;
    return OK;
}

#ifndef OLD
Return nvmlDeviceGetMemoryInfo_v2(Device device, void *structure) {
    CARD;
    u64 *to = (u64 *)structure + 1;  /* after the version */
    memory(device, line, &to[0], &to[3]);
    to[1] = 600ull << 20;
    to[2] = to[0] - to[1] - to[3];
    return OK;
}
Return nvmlDeviceGetCurrentClocksEventReasons(Device device, u64 *to) { return nvmlDeviceGetCurrentClocksThrottleReasons(device, to); }
Return nvmlDeviceGetTotalEnergyConsumption(Device device, u64 *to) { WHOLE; *to = GET("energy", 5000000); return OK; }
Return nvmlDeviceGetRemappedRows(Device device, u32 *correctable, u32 *uncorrectable, u32 *pending, u32 *failure) {
    WHOLE;
    *correctable = (u32)GET("rows", 0);
    *uncorrectable = (u32)GET("bad_rows", 0);
    *pending = (u32)GET("pending", 0);
    *failure = (u32)GET("remap_failed", 0);
    return OK;
}

typedef struct { Device device; u64 type, data; u32 gpu_instance, compute_instance; } Event;
static int registered[16];
static long told;
static FILE *events(void) {
    char path[512];
    snprintf(path, sizeof path, "%s.xids", getenv("FAKE_NVML"));
    return fopen(path, "r");
}
Return nvmlEventSetCreate(void **to) {
    *to = registered;
    memset(registered, 0, sizeof registered);
    FILE *file = events();  /* what happened before is no event of this set */
    if (file && !told) { fseek(file, 0, SEEK_END); told = ftell(file); }
    if (file) fclose(file);
    return OK;
}
Return nvmlEventSetFree(void *set) { return OK; }
Return nvmlDeviceRegisterEvents(Device device, u64 types, void *set) {
    WHOLE;
    if (types != 8) return INVALID;  /* nvmlEventTypeXidCriticalError */
    registered[card_of(device)] = 1;
    return OK;
}
Return nvmlEventSetWait_v2(void *set, Event *to, u32 milliseconds) {
    for (u32 waited = 0; waited < milliseconds; waited += 20) {
        char line[64];
        int gpu, xid;
        long instance;
        FILE *file = events();
        if (file) {
            fseek(file, told, SEEK_SET);
            while (fgets(line, sizeof line, file) && strchr(line, '\n')) {
                told = ftell(file);
                if (sscanf(line, "%d %d %ld", &gpu, &xid, &instance) != 3 || !registered[gpu]) continue;
                memset(to, 0, sizeof *to);
                to->device = (Device)(long)(gpu * 100 + 1);
                to->type = 8;
                to->data = (u64)xid;
                to->gpu_instance = to->compute_instance = (u32)instance;
                fclose(file);
                return OK;
            }
            fclose(file);
        }
        usleep(20000);
    }
    return TIMEOUT;
}
#endif
