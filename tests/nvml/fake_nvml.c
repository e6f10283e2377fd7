/* A stand-in for libnvidia-ml.so.1: the part of NVML that gpuslice calls, behaving as the driver does.
 *
 * The machine is described by lines in the file named by FAKE_NVML (tests/nvml/fakelib.py writes them):
 *
 *   init CODE                                  nvmlInit fails with this code
 *   driver VERSION | cuda NUMBER               550.163.01 | 12040
 *   gpu I UUID MINOR BUSID MAJOR.MINOR BRAND TOTAL_MIB RESERVED_MIB RESETS NAME
 *                                              RESETS: none (no MIG), reset (mode waits for one), atonce
 *   pci I DEVICE SUBSYSTEM                     as decimal numbers
 *   profile I ENUM ID SLICES WINDOW MAX SM COPY DEC ENC JPEG OFA MIB STARTS(a,b,c) ME(0|1)
 *   mig I MODE [PENDING] | instance I PROFILE_ID START [SLICES(a,b) or -]
 *                                              how the GPU was left: read once. Without SLICES it has one compute
 *                                              instance as large as itself, with - none
 *   relation I J LEVEL | nvlink I LINK J       J = -1: a switch
 *   fabric I STATE STATUS CLUSTER_UUID CLIQUE  the UUID as 32 hexadecimal digits
 *   lost I | gone I | busy I GI | action I N   true for as long as the line is there
 *   vanishes I N                               lost, once it has answered N more calls
 *   xid SEQ I XID [GI CI] | reset SEQ I        happen once, in the order of SEQ
 *
 * The file is looked at in every call, so that a test changes the machine by writing it anew. How the GPUs are
 * cut is kept in the file named by FAKE_NVML_KEPT, if there is one, for the processes that come after this one.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
  OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10,
  LOST = 15, RESET_REQUIRED = 16, IN_USE = 19, NO_ROOM = 23,
};
enum { GPUS = 16, PROFILES = 24, WINDOWS = 8, INSTANCES = 8, LINKS = 18, EVENTS = 64 };
#define ANY 0xffffffffu

typedef struct { unsigned start, size; } Placement;

typedef struct {
  unsigned number, id, slices, window, max, sm, copy, dec, enc, jpeg, ofa, mib, starts[WINDOWS], places, me;
} Profile;

struct Gpu;
struct Instance;

typedef struct Compute {
  int kind, used;
  struct Instance *instance;
  unsigned id, slices;
} Compute;

typedef struct Instance {
  int used, busy;
  struct Gpu *gpu;
  Profile *profile;
  unsigned id, start;
  Compute computes[INSTANCES];
} Instance;

typedef struct Gpu {
  int kind, present, lost, gone, can_mig, at_once, answers;
  unsigned minor, major_cc, minor_cc, brand, mode, pending, action, device_id, subsystem_id;
  unsigned long long total, reserved;
  char uuid[96], bus[32], name[96];
  Profile profiles[PROFILES];
  unsigned count;
  Instance instances[INSTANCES];
  unsigned relation[GPUS];
  int nvlink[LINKS];
  unsigned char fabric_state, cluster[16];
  unsigned clique, fabric_status;
} Gpu;

enum { A_GPU = 1, A_MIG = 2 };

typedef struct { Gpu *gpu; unsigned long long type, data; unsigned gi, ci; } Event;
typedef struct { int waiting; unsigned char registered[GPUS]; } EventSet;

static Gpu gpus[GPUS];
static Gpu *listed[GPUS];
static unsigned listed_count;
static Event events[EVENTS];
static unsigned event_count;
static unsigned long last_sequence;
static char driver[80];
static int cuda, init_code, users, loaded;
static struct stat seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void activate(Gpu *gpu) {
  if (gpu->mode != gpu->pending) memset(gpu->instances, 0, sizeof gpu->instances);
  gpu->mode = gpu->pending;
}

static Profile *profile_of(Gpu *gpu, unsigned id) {
  for (unsigned i = 0; i < gpu->count; i++)
    if (gpu->profiles[i].id == id) return &gpu->profiles[i];
  return NULL;
}

static unsigned slices_of(Gpu *gpu, int memory) {
  unsigned most = 0;
  for (unsigned i = 0; i < gpu->count; i++) {
    unsigned own = memory ? gpu->profiles[i].window : gpu->profiles[i].slices;
    most = own > most ? own : most;
  }
  return most;
}

static int fits(Gpu *gpu, Profile *wanted, unsigned start) {
  unsigned same = 0, me = 0, slices = 0;
  for (Instance *other = gpu->instances; other < gpu->instances + INSTANCES; other++) {
    if (!other->used) continue;
    same += other->profile == wanted;
    me += other->profile->me;
    slices += other->profile->slices;
    if (start < other->start + other->profile->window && other->start < start + wanted->window) return 0;
  }
  return same < wanted->max && (!wanted->me || !me) && slices + wanted->slices <= slices_of(gpu, 0);
}

static unsigned remaining(Gpu *gpu) {
  unsigned found = 0;
  for (unsigned i = 0; i < gpu->count; i++)
    for (unsigned j = 0; j < gpu->profiles[i].places; j++)
      found += fits(gpu, &gpu->profiles[i], gpu->profiles[i].starts[j]);
  return found;
}

static Instance *place(Gpu *gpu, Profile *profile, unsigned start) {
  Instance *instance = gpu->instances;
  while (instance->used) instance++; /* no profile is so small that there is no room here */
  memset(instance, 0, sizeof *instance);
  instance->used = 1;
  instance->gpu = gpu;
  instance->profile = profile;
  instance->start = start;
  instance->id = slices_of(gpu, 1) / profile->window - 1 + start / profile->window;
  return instance;
}

/* Where no start is asked for, the one that leaves the most room; of equals the lowest. */
static __attribute__((unused)) Instance *choose(Gpu *gpu, Profile *profile) {
  int best = -1;
  unsigned most = 0;
  for (unsigned i = 0; i < profile->places; i++) {
    if (!fits(gpu, profile, profile->starts[i])) continue;
    Instance *tried = place(gpu, profile, profile->starts[i]);
    unsigned left = remaining(gpu);
    tried->used = 0;
    if (best < 0 || left > most) best = (int)i, most = left;
  }
  return best < 0 ? NULL : place(gpu, profile, profile->starts[best]);
}

static Compute *fill(Instance *instance, unsigned slices) {
  unsigned taken = 0;
  Compute *free_one = NULL;
  for (Compute *compute = instance->computes; compute < instance->computes + INSTANCES; compute++) {
    if (compute->used) taken += compute->slices;
    else if (!free_one) free_one = compute;
  }
  if (!free_one || taken + slices > instance->profile->slices) return NULL;
  free_one->kind = A_MIG;
  free_one->used = 1;
  free_one->instance = instance;
  free_one->id = (unsigned)(free_one - instance->computes);
  free_one->slices = slices;
  return free_one;
}

static int happens(unsigned long sequence) { return sequence > last_sequence; }

static void obey(char *line, unsigned long *newest) {
  char text[96], bus[32], starts[64], resets[16];
  unsigned i, a, b, c, d, total, reserved;
  unsigned long sequence;
  int from, fields, link;
  if (sscanf(line, "init %d", &init_code) == 1 || sscanf(line, "cuda %d", &cuda) == 1) return;
  if (sscanf(line, "driver %79s", driver) == 1) return;
  if (sscanf(line, "lost %u", &i) == 1 && i < GPUS) { gpus[i].lost = 1; return; }
  if (sscanf(line, "vanishes %u %u", &i, &a) == 2 && i < GPUS) { gpus[i].answers = (int)a; return; }
  if (sscanf(line, "gone %u", &i) == 1 && i < GPUS) { gpus[i].gone = 1; return; }
  if (sscanf(line, "action %u %u", &i, &a) == 2 && i < GPUS) { gpus[i].action = a; return; }
  if (sscanf(line, "relation %u %u %u", &i, &a, &b) == 3 && i < GPUS && a < GPUS) {
    gpus[i].relation[a] = gpus[a].relation[i] = b;
    return;
  }
  if (sscanf(line, "nvlink %u %u %d", &i, &a, &link) == 3 && i < GPUS && a < LINKS) {
    gpus[i].nvlink[a] = link;
    return;
  }
  if (sscanf(line, "busy %u %u", &i, &a) == 2 && i < GPUS) {
    for (Instance *one = gpus[i].instances; one < gpus[i].instances + INSTANCES; one++)
      if (one->used && one->id == a) one->busy = 1;
    return;
  }
  if (sscanf(line, "fabric %u %u %u %32s %u", &i, &a, &b, text, &c) == 5 && i < GPUS) {
    gpus[i].fabric_state = (unsigned char)a;
    gpus[i].fabric_status = b;
    gpus[i].clique = c;
    for (int at = 0; at < 16; at++) sscanf(text + 2 * at, "%2hhx", &gpus[i].cluster[at]);
    return;
  }
  c = d = ANY;
  if ((fields = sscanf(line, "xid %lu %u %u %u %u", &sequence, &i, &a, &c, &d)) >= 3 && i < GPUS) {
    if (happens(sequence) && event_count < EVENTS)
      events[event_count++] = (Event){&gpus[i], 8, a, c, d};
    *newest = sequence > *newest ? sequence : *newest;
    return;
  }
  if (sscanf(line, "reset %lu %u", &sequence, &i) == 2 && i < GPUS) {
    if (happens(sequence)) activate(&gpus[i]);
    *newest = sequence > *newest ? sequence : *newest;
    return;
  }
  if (loaded) return;
  if (sscanf(line, "gpu %u %95s %u %31s %u.%u %u %u %u %15s %n", &i, text, &a, bus, &b, &c, &d,
             &total, &reserved, resets, &from) >= 10 && i < GPUS) {
    Gpu *gpu = &gpus[i];
    gpu->kind = A_GPU;
    gpu->present = 1;
    gpu->minor = a;
    gpu->major_cc = b;
    gpu->minor_cc = c;
    gpu->brand = d;
    gpu->total = (unsigned long long)total << 20;
    gpu->reserved = (unsigned long long)reserved << 20;
    gpu->can_mig = strcmp(resets, "none") != 0;
    gpu->at_once = strcmp(resets, "atonce") == 0;
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", text);
    snprintf(gpu->bus, sizeof gpu->bus, "%s", bus);
    snprintf(gpu->name, sizeof gpu->name, "%s", line + from);
    return;
  }
  if (sscanf(line, "pci %u %u %u", &i, &a, &b) == 3 && i < GPUS) {
    gpus[i].device_id = a;
    gpus[i].subsystem_id = b;
    return;
  }
  Profile p;
  memset(&p, 0, sizeof p);
  if (sscanf(line, "profile %u %u %u %u %u %u %u %u %u %u %u %u %u %63s %u", &i, &p.number, &p.id, &p.slices,
             &p.window, &p.max, &p.sm, &p.copy, &p.dec, &p.enc, &p.jpeg, &p.ofa, &p.mib, starts, &p.me) == 15 &&
      i < GPUS && gpus[i].count < PROFILES) {
    for (char *part = strtok(starts, ","); part && p.places < WINDOWS; part = strtok(NULL, ","))
      p.starts[p.places++] = (unsigned)atoi(part);
    gpus[i].profiles[gpus[i].count++] = p;
    return;
  }
  if ((fields = sscanf(line, "mig %u %u %u", &i, &a, &b)) >= 2 && i < GPUS) {
    gpus[i].mode = a;
    gpus[i].pending = fields == 3 ? b : a;
    return;
  }
  if ((fields = sscanf(line, "instance %u %u %u %63s", &i, &a, &b, starts)) >= 3 && i < GPUS) {
    Profile *profile = profile_of(&gpus[i], a);
    if (!profile || !fits(&gpus[i], profile, b)) return;
    Instance *made = place(&gpus[i], profile, b);
    if (fields == 3) fill(made, profile->slices);
    else
      for (char *part = strtok(starts, ",-"); part; part = strtok(NULL, ",-")) fill(made, (unsigned)atoi(part));
    return;
  }
  if (*line && *line != '#') {
    fprintf(stderr, "fake NVML: cannot read the line: %s\n", line);
    abort();
  }
}

static int is_old(const struct stat *now, const struct stat *then) {
  return now->st_ino == then->st_ino && now->st_mtim.tv_nsec == then->st_mtim.tv_nsec &&
         now->st_mtim.tv_sec == then->st_mtim.tv_sec;
}

/* How the GPUs are cut, in lines that `obey` reads. */
static void describe(char *to, size_t room) {
  size_t used = 0;
  *to = 0;
  for (unsigned i = 0; i < GPUS; i++) {
    Gpu *gpu = &gpus[i];
    if (!gpu->present || !gpu->can_mig) continue;
    used += (size_t)snprintf(to + used, room - used, "mig %u %u %u\n", i, gpu->mode, gpu->pending);
    for (Instance *one = gpu->instances; one < gpu->instances + INSTANCES; one++) {
      if (!one->used) continue;
      const char *between = "";
      used += (size_t)snprintf(to + used, room - used, "instance %u %u %u ", i, one->profile->id, one->start);
      for (Compute *compute = one->computes; compute < one->computes + INSTANCES; compute++)
        if (compute->used) {
          used += (size_t)snprintf(to + used, room - used, "%s%u", between, compute->slices);
          between = ",";
        }
      used += (size_t)snprintf(to + used, room - used, "%s\n", *between ? "" : "-");
    }
  }
}

static char kept[16384];
static struct stat kept_seen;

static void keep(void) {
  const char *path = getenv("FAKE_NVML_KEPT");
  char now[sizeof kept], aside[512];
  if (!path || !loaded) return;
  describe(now, sizeof now);
  if (!strcmp(now, kept)) return;
  snprintf(aside, sizeof aside, "%s.new", path);
  FILE *file = fopen(aside, "w");
  if (!file) return;
  fputs(now, file);
  fclose(file);
  rename(aside, path);
  stat(path, &kept_seen);
  strcpy(kept, now);
}

/* Somebody else has cut the GPUs. */
static int recall(void) {
  const char *path = getenv("FAKE_NVML_KEPT");
  struct stat now;
  char line[512];
  unsigned long none = 0;
  if (!path || stat(path, &now) || is_old(&now, &kept_seen)) return 0;
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  int before = loaded;
  loaded = 0;
  for (Gpu *gpu = gpus; gpu < gpus + GPUS; gpu++) memset(gpu->instances, 0, sizeof gpu->instances);
  while (fgets(line, sizeof line, file)) obey(line, &none);
  fclose(file);
  loaded = before;
  kept_seen = now;
  describe(kept, sizeof kept);
  return 1;
}

static void look(void) {
  const char *path = getenv("FAKE_NVML");
  struct stat now;
  char line[512];
  if (!path || stat(path, &now)) return;
  if (loaded && is_old(&now, &seen)) {
    recall();
    return;
  }
  FILE *file = fopen(path, "r");
  if (!file) return;
  unsigned long newest = last_sequence;
  init_code = 0;
  for (Gpu *gpu = gpus; gpu < gpus + GPUS; gpu++) {
    gpu->lost = gpu->gone = 0;
    gpu->action = 0;
    gpu->answers = -1;
    for (Instance *one = gpu->instances; one < gpu->instances + INSTANCES; one++) one->busy = 0;
    for (int *to = gpu->nvlink; to < gpu->nvlink + LINKS; to++) *to = -2;
  }
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    obey(line, &newest);
  }
  if (recall())
    for (rewind(file); fgets(line, sizeof line, file);)
      if (!strncmp(line, "busy ", 5)) obey(line, &newest);
  fclose(file);
  last_sequence = newest;
  loaded = 1;
  seen = now;
}

/* Every call holds the lock, has looked at the file, and needs an initialised library. */
static int enter(void) {
  pthread_mutex_lock(&lock);
  look();
  return users > 0 ? OK : UNINITIALIZED;
}

static int is_lost(Gpu *gpu) {
  if (gpu->answers > 0) gpu->answers--;
  else if (gpu->answers == 0) gpu->lost = 1;
  return gpu->lost;
}

static int leave(int code) {
  keep();
  pthread_mutex_unlock(&lock);
  return code;
}

#define BEGIN                           \
  int code = enter();                   \
  if (code != OK) return leave(code)

#define BEGIN_GPU(gpu)                                                        \
  BEGIN;                                                                      \
  if (!(gpu) || (gpu)->kind != A_GPU || !(gpu)->present) return leave(INVALID); \
  if (is_lost(gpu)) return leave(LOST)

#define BEGIN_MIG(compute)                                                               \
  BEGIN;                                                                                 \
  if (!(compute) || (compute)->kind != A_MIG || !(compute)->used) return leave(INVALID); \
  if (is_lost((compute)->instance->gpu)) return leave(LOST)

static int text(char *to, unsigned room, const char *from) {
  if (strlen(from) + 1 > room) return SMALL;
  strcpy(to, from);
  return OK;
}

/* --- the library and the system ------------------------------------------------------------------------- */
int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  look();
  if (init_code) return leave(init_code);
  if (users++ == 0) {
    listed_count = 0;
    for (Gpu *gpu = gpus; gpu < gpus + GPUS; gpu++)
      if (gpu->present && !gpu->gone) listed[listed_count++] = gpu;
  }
  return leave(OK);
}

int nvmlShutdown(void) {
  BEGIN;
  users--;
  return leave(OK);
}

const char *nvmlErrorString(int code) {
  static char words[32];
  snprintf(words, sizeof words, "fake NVML error %d", code);
  return words;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
  BEGIN;
  return leave(text(version, length, driver));
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  BEGIN;
  *version = cuda;
  return leave(OK);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  BEGIN;
  *count = listed_count;
  return leave(OK);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
  BEGIN;
  if (index >= listed_count) return leave(INVALID);
  if (is_lost(listed[index])) return leave(LOST);
  *gpu = listed[index];
  return leave(OK);
}

/* --- one GPU --------------------------------------------------------------------------------------------- */
static void mig_uuid(Compute *compute, char *to, unsigned room) {
  char key[160];
  unsigned long long hash[2] = {14695981039346656037ull, 1099511628211ull};
  snprintf(key, sizeof key, "%s/%u/%u", compute->instance->gpu->uuid, compute->instance->id, compute->id);
  for (char *c = key; *c; c++)
    for (int half = 0; half < 2; half++) hash[half] = (hash[half] ^ (unsigned char)*c) * (1099511628211ull + half * 2);
  snprintf(to, room, "MIG-%08llx-%04llx-5%03llx-8%03llx-%012llx", hash[0] >> 32, hash[0] >> 16 & 0xffff,
           hash[0] & 0xfff, hash[1] >> 48 & 0xfff, hash[1] & 0xffffffffffffull);
}

int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned length) {
  if (gpu && gpu->kind == A_MIG) {
    Compute *compute = (Compute *)gpu;
    char made[96];
    BEGIN_MIG(compute);
    mig_uuid(compute, made, sizeof made);
    return leave(text(uuid, length, made));
  }
  BEGIN_GPU(gpu);
  return leave(text(uuid, length, gpu->uuid));
}

int nvmlDeviceGetIndex(Gpu *gpu, unsigned *index) {
  if (gpu && gpu->kind == A_MIG) return UNSUPPORTED;
  BEGIN_GPU(gpu);
  for (*index = 0; *index < listed_count; ++*index)
    if (listed[*index] == gpu) return leave(OK);
  return leave(NOT_FOUND);
}

int nvmlDeviceGetName(Gpu *gpu, char *name, unsigned length) {
  BEGIN_GPU(gpu);
  return leave(text(name, length, gpu->name));
}

int nvmlDeviceGetBrand(Gpu *gpu, unsigned *brand) {
  BEGIN_GPU(gpu);
  *brand = gpu->brand;
  return leave(OK);
}

int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *minor) {
  BEGIN_GPU(gpu);
  *minor = gpu->minor;
  return leave(OK);
}

typedef struct {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
} Pci;

static void pci_of(Gpu *gpu, Pci *pci) {
  memset(pci, 0, sizeof *pci);
  pci->device_id = gpu->device_id;
  pci->subsystem_id = gpu->subsystem_id;
  snprintf(pci->id, sizeof pci->id, "%s", gpu->bus);
  snprintf(pci->legacy, sizeof pci->legacy, "%.15s", gpu->bus + 4);
}

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
  BEGIN_GPU(gpu);
  pci_of(gpu, pci);
  return leave(OK);
}

typedef struct { unsigned long long total, free, used; } Memory;

int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
  BEGIN_GPU(gpu);
#ifdef OLD_DRIVER /* what is reserved was not part of the total */
  *memory = (Memory){gpu->total - gpu->reserved, gpu->total - gpu->reserved, 0};
#else
  *memory = (Memory){gpu->total, gpu->total - gpu->reserved, gpu->reserved};
#endif
  return leave(OK);
}

#ifndef OLD_DRIVER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;

int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, Memory2 *memory) {
  BEGIN_GPU(gpu);
  if (memory->version != (sizeof(Memory2) | 2u << 24)) return leave(25);
  *memory = (Memory2){memory->version, gpu->total, gpu->reserved, gpu->total - gpu->reserved, 0};
  return leave(OK);
}
#endif

int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
  BEGIN_GPU(gpu);
  *major = (int)gpu->major_cc;
  *minor = (int)gpu->minor_cc;
  return leave(OK);
}

int nvmlDeviceGetTopologyCommonAncestor(Gpu *gpu, Gpu *other, unsigned *level) {
  BEGIN_GPU(gpu);
  if (!other || other->kind != A_GPU) return leave(INVALID);
  if (is_lost(other)) return leave(LOST);
  *level = gpu->relation[other - gpus];
  return leave(OK);
}

int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active) {
  BEGIN_GPU(gpu);
  if (link >= LINKS) return leave(INVALID);
  if (gpu->nvlink[link] == -2) return leave(UNSUPPORTED);
  *active = 1;
  return leave(OK);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *gpu, unsigned link, unsigned *type) {
  BEGIN_GPU(gpu);
  if (link >= LINKS || gpu->nvlink[link] == -2) return leave(INVALID);
  *type = gpu->nvlink[link] == -1 ? 2 : 0;
  return leave(OK);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, Pci *pci) {
  BEGIN_GPU(gpu);
  if (link >= LINKS || gpu->nvlink[link] == -2) return leave(INVALID);
  if (gpu->nvlink[link] >= 0) pci_of(&gpus[gpu->nvlink[link]], pci);
  else memset(pci, 0, sizeof *pci);
  return leave(OK);
}

typedef struct {
  unsigned field, scope;
  long long timestamp, latency;
  int type, code;
  union { unsigned number; unsigned long long wide; } value;
} Field;

int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields) {
  BEGIN_GPU(gpu);
  for (int i = 0; i < count; i++) {
    fields[i].type = 1; /* unsigned int */
#ifdef OLD_DRIVER
    fields[i].code = UNSUPPORTED;
#else
    fields[i].code = fields[i].field == RECOVERY_ACTION ? OK : UNSUPPORTED;
    fields[i].value.wide = gpu->action;
#endif
  }
  return leave(OK);
}

#ifndef OLD_DRIVER
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } Fabric;

int nvmlDeviceGetGpuFabricInfo(Gpu *gpu, Fabric *fabric) {
  BEGIN_GPU(gpu);
  if (!gpu->fabric_state) return leave(UNSUPPORTED);
  memcpy(fabric->cluster, gpu->cluster, sizeof gpu->cluster);
  fabric->status = (int)gpu->fabric_status;
  fabric->clique = gpu->clique;
  fabric->state = gpu->fabric_state;
  return leave(OK);
}
#endif

/* --- events ---------------------------------------------------------------------------------------------- */
int nvmlEventSetCreate(EventSet **set) {
  BEGIN;
  *set = calloc(1, sizeof **set);
  return leave(OK);
}

int nvmlEventSetFree(EventSet *set) {
  BEGIN;
  if (set->waiting) {
    fprintf(stderr, "fake NVML: a set of events is freed while a thread waits on it\n");
    abort();
  }
  free(set);
  return leave(OK);
}

int nvmlDeviceGetSupportedEventTypes(Gpu *gpu, unsigned long long *types) {
  BEGIN_GPU(gpu);
  *types = 1 | 2 | 8;
  return leave(OK);
}

int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, EventSet *set) {
  BEGIN_GPU(gpu);
  if (types & ~11ull) return leave(UNSUPPORTED);
  set->registered[gpu - gpus] = 1;
  return leave(OK);
}

int nvmlEventSetWait_v2(EventSet *set, Event *event, unsigned milliseconds) {
  for (unsigned waited = 0;; waited += 2) {
    BEGIN;
    set->waiting = 0;
    for (Gpu *gpu = gpus; gpu < gpus + GPUS; gpu++)
      if (set->registered[gpu - gpus] && gpu->lost) return leave(LOST);
    for (unsigned i = 0; i < event_count; i++) {
      if (!set->registered[events[i].gpu - gpus]) continue;
      *event = events[i];
      memmove(events + i, events + i + 1, (--event_count - i) * sizeof *events);
      return leave(OK);
    }
    if (waited >= milliseconds) return leave(TIMEOUT);
    set->waiting = 1;
    leave(OK);
    nanosleep(&(struct timespec){0, 2000000}, NULL);
  }
}

#ifndef OLD_DRIVER
/* --- MIG ------------------------------------------------------------------------------------------------- */
#define BEGIN_CUT(gpu)                             \
  BEGIN_GPU(gpu);                                  \
  if (!(gpu)->can_mig) return leave(UNSUPPORTED)

#define BEGIN_INSTANCE(one)                            \
  BEGIN;                                               \
  if (!(one) || !(one)->used) return leave(INVALID);   \
  if (is_lost((one)->gpu)) return leave(LOST)

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
  BEGIN_CUT(gpu);
  *current = gpu->mode;
  *pending = gpu->pending;
  return leave(OK);
}

int nvmlDeviceSetMigMode(Gpu *gpu, unsigned mode, int *activation) {
  BEGIN_CUT(gpu);
  if (mode > 1) return leave(INVALID);
  for (Instance *one = gpu->instances; one < gpu->instances + INSTANCES; one++)
    if (one->used && mode == 0) return leave(IN_USE);
  gpu->pending = mode;
  if (gpu->at_once) activate(gpu);
  *activation = gpu->mode == gpu->pending ? OK : RESET_REQUIRED;
  return leave(OK);
}

typedef struct {
  unsigned id, p2p, slices, instances, sm, copy, dec, enc, jpeg, ofa;
  unsigned long long mib;
} ProfileInfo;

static int profile_info(Gpu *gpu, unsigned number, ProfileInfo *info) {
  for (unsigned i = 0; i < gpu->count; i++) {
    Profile *p = &gpu->profiles[i];
    if (p->number != number) continue;
    *info = (ProfileInfo){p->id, 0, p->slices, p->max, p->sm, p->copy, p->dec, p->enc, p->jpeg, p->ofa, p->mib};
    return OK;
  }
  return UNSUPPORTED;
}

int nvmlDeviceGetGpuInstanceProfileInfo(Gpu *gpu, unsigned number, ProfileInfo *info) {
  BEGIN_CUT(gpu);
  return leave(profile_info(gpu, number, info));
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Gpu *gpu, unsigned id, Placement *places, unsigned *count) {
  BEGIN_CUT(gpu);
  Profile *profile = profile_of(gpu, id);
  if (!profile) return leave(UNSUPPORTED);
  if (places && *count < profile->places) return leave(SMALL);
  *count = profile->places;
  for (unsigned i = 0; places && i < profile->places; i++) places[i] = (Placement){profile->starts[i], profile->window};
  return leave(OK);
}

static int create(Gpu *gpu, unsigned id, const Placement *where, Instance **made) {
  Profile *profile = profile_of(gpu, id);
  if (!gpu->mode || !profile) return UNSUPPORTED;
  if (!where) {
    *made = choose(gpu, profile);
    return *made ? OK : NO_ROOM;
  }
  for (unsigned i = 0; i < profile->places; i++)
    if (profile->starts[i] == where->start && profile->window == where->size) {
      if (!fits(gpu, profile, where->start)) return NO_ROOM;
      *made = place(gpu, profile, where->start);
      return OK;
    }
  return INVALID;
}

int nvmlDeviceCreateGpuInstance(Gpu *gpu, unsigned id, Instance **made) {
  BEGIN_CUT(gpu);
  return leave(create(gpu, id, NULL, made));
}

int nvmlDeviceCreateGpuInstanceWithPlacement(Gpu *gpu, unsigned id, const Placement *where, Instance **made) {
  BEGIN_CUT(gpu);
  return leave(create(gpu, id, where, made));
}

int nvmlGpuInstanceDestroy(Instance *one) {
  BEGIN_INSTANCE(one);
  for (Compute *compute = one->computes; compute < one->computes + INSTANCES; compute++)
    if (compute->used) return leave(IN_USE);
  one->used = 0;
  return leave(OK);
}

int nvmlDeviceGetGpuInstances(Gpu *gpu, unsigned id, Instance **found, unsigned *count) {
  BEGIN_CUT(gpu);
  if (!gpu->mode || !profile_of(gpu, id)) return leave(UNSUPPORTED);
  *count = 0;
  for (Instance *one = gpu->instances; one < gpu->instances + INSTANCES; one++)
    if (one->used && one->profile->id == id) found[(*count)++] = one;
  return leave(OK);
}

int nvmlDeviceGetGpuInstanceById(Gpu *gpu, unsigned id, Instance **found) {
  BEGIN_CUT(gpu);
  for (Instance *one = gpu->instances; one < gpu->instances + INSTANCES; one++)
    if (one->used && one->id == id) {
      *found = one;
      return leave(OK);
    }
  return leave(NOT_FOUND);
}

typedef struct { Gpu *gpu; unsigned id, profile; Placement placement; } InstanceInfo;

int nvmlGpuInstanceGetInfo(Instance *one, InstanceInfo *info) {
  BEGIN_INSTANCE(one);
  *info = (InstanceInfo){one->gpu, one->id, one->profile->id, {one->start, one->profile->window}};
  return leave(OK);
}

/* Compute instances: a profile's id is its number; the last one is that of 1g with media extensions. */
static const unsigned compute_slices[] = {1, 2, 3, 4, 7, 8, 6, 1};

typedef struct { unsigned id, slices, instances, sm, copy, dec, enc, jpeg, ofa; } ComputeProfile;

static int compute_profile(Instance *one, unsigned number, ComputeProfile *info) {
  Profile *p = one->profile;
  if (number >= 8 || compute_slices[number] > p->slices) return UNSUPPORTED;
  if (compute_slices[number] == 1 && (number == 7) != (p->number == 7)) return UNSUPPORTED;
  unsigned slices = compute_slices[number];
  if (slices < p->slices && 2 * slices > p->slices + 1) return UNSUPPORTED;
  *info = (ComputeProfile){number, slices, p->slices / slices, p->sm * slices / p->slices, p->copy, p->dec, p->enc,
                           p->jpeg, p->ofa};
  return OK;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(Instance *one, unsigned number, unsigned engine, ComputeProfile *info) {
  BEGIN_INSTANCE(one);
  return leave(engine ? UNSUPPORTED : compute_profile(one, number, info));
}

int nvmlGpuInstanceCreateComputeInstance(Instance *one, unsigned id, Compute **made) {
  ComputeProfile info;
  BEGIN_INSTANCE(one);
  if (compute_profile(one, id, &info)) return leave(UNSUPPORTED);
  *made = fill(one, info.slices);
  return leave(*made ? OK : NO_ROOM);
}

int nvmlComputeInstanceDestroy(Compute *compute) {
  BEGIN_MIG(compute);
  if (compute->instance->busy) return leave(IN_USE);
  compute->used = 0;
  return leave(OK);
}

int nvmlGpuInstanceGetComputeInstances(Instance *one, unsigned id, Compute **found, unsigned *count) {
  ComputeProfile info;
  BEGIN_INSTANCE(one);
  if (compute_profile(one, id, &info)) return leave(UNSUPPORTED);
  *count = 0;
  for (Compute *compute = one->computes; compute < one->computes + INSTANCES; compute++)
    if (compute->used && compute->slices == info.slices) found[(*count)++] = compute;
  return leave(OK);
}

int nvmlGpuInstanceGetComputeInstanceById(Instance *one, unsigned id, Compute **found) {
  BEGIN_INSTANCE(one);
  if (id >= INSTANCES || !one->computes[id].used) return leave(NOT_FOUND);
  *found = &one->computes[id];
  return leave(OK);
}

typedef struct { Gpu *gpu; Instance *instance; unsigned id, profile; Placement placement; } ComputeInfo;

int nvmlComputeInstanceGetInfo_v2(Compute *compute, ComputeInfo *info) {
  BEGIN_MIG(compute);
  *info = (ComputeInfo){compute->instance->gpu, compute->instance, compute->id, 0, {0, compute->slices}};
  for (unsigned number = 0; number < 8; number++) {
    ComputeProfile kind;
    if (!compute_profile(compute->instance, number, &kind) && kind.slices == compute->slices) info->profile = number;
  }
  return leave(OK);
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count) {
  BEGIN_CUT(gpu);
  *count = slices_of(gpu, 0);
  return leave(OK);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, Compute **found) {
  BEGIN_CUT(gpu);
  for (unsigned id = 0; gpu->mode && id < 16; id++) /* in the order of the instances' ids */
    for (Instance *one = gpu->instances; one < gpu->instances + INSTANCES; one++)
      for (Compute *compute = one->computes; compute < one->computes + INSTANCES; compute++)
        if (one->used && one->id == id && compute->used && index-- == 0) {
          *found = compute;
          return leave(OK);
        }
  return leave(NOT_FOUND);
}

int nvmlDeviceGetGpuInstanceId(Compute *compute, unsigned *id) {
  BEGIN_MIG(compute);
  *id = compute->instance->id;
  return leave(OK);
}

int nvmlDeviceGetComputeInstanceId(Compute *compute, unsigned *id) {
  BEGIN_MIG(compute);
  *id = compute->id;
  return leave(OK);
}

typedef struct {
  unsigned sm, copy, dec, enc, jpeg, ofa, gpu_slices, compute_slices;
  unsigned long long mib;
} Attributes;

int nvmlDeviceGetAttributes_v2(Compute *compute, Attributes *attributes) {
  BEGIN_MIG(compute);
  Profile *p = compute->instance->profile;
  *attributes = (Attributes){p->sm * compute->slices / p->slices, p->copy, p->dec, p->enc, p->jpeg, p->ofa, p->slices,
                             compute->slices, p->mib};
  return leave(OK);
}
#endif
