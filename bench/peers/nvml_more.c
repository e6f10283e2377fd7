/* The stand-in for NVML of our tests, and the calls that NVIDIA's own tools make besides. */
#include "../../tests/nvml/fake_nvml.c"

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
  char made[96];
  BEGIN;
  snprintf(made, sizeof made, "12.%s", driver);
  return leave(text(version, length, made));
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **found) {
  char made[96];
  BEGIN;
  for (unsigned i = 0; i < listed_count; i++) {
    if (!strcmp(listed[i]->uuid, uuid)) {
      if (is_lost(listed[i])) return leave(LOST);
      *found = listed[i];
      return leave(OK);
    }
    for (Instance *one = listed[i]->instances; one < listed[i]->instances + INSTANCES; one++)
      for (Compute *compute = one->computes; compute < one->computes + INSTANCES; compute++) {
        if (!one->used || !compute->used) continue;
        mig_uuid(compute, made, sizeof made);
        if (strcmp(made, uuid)) continue;
        *found = (Gpu *)compute;
        return leave(OK);
      }
  }
  return leave(NOT_FOUND);
}

/* The domain may have four digits, as the kernel writes it, or eight. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Gpu **found) {
  BEGIN;
  for (unsigned i = 0; i < listed_count; i++)
    if (strchr(bus, ':') && !strcmp(strchr(listed[i]->bus, ':'), strchr(bus, ':'))) {
      *found = listed[i];
      return leave(OK);
    }
  return leave(NOT_FOUND);
}

int nvmlDeviceIsMigDeviceHandle(Gpu *gpu, unsigned *is_mig) {
  BEGIN;
  if (!gpu) return leave(INVALID);
  *is_mig = gpu->kind == A_MIG;
  return leave(OK);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Compute *compute, Gpu **gpu) {
  BEGIN_MIG(compute);
  *gpu = compute->instance->gpu;
  return leave(OK);
}
