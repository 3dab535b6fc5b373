/* Preloaded into a process under test: its clocks go wrong as a file says, and its k-th fdatasync fails.
 *
 * Interposing the C library's clock_gettime is not enough: programs that read the vDSO themselves (rustix does) never
 * come by there. So on x86-64 the vDSO's own functions are overwritten with jumps to the ones here, before main.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOS 1000000000LL

/* What the file says; `seq` is odd while it is written. `rate` is in thousandths. */
struct warp {
    volatile int64_t seq, wall, since, extra, rate;
};

static volatile struct warp *warp;

static int64_t real(clockid_t clock) {
    struct timespec t;
    if (syscall(SYS_clock_gettime, clock, &t) != 0)
        return 0;
    return t.tv_sec * NANOS + t.tv_nsec;
}

/* How far this clock is off just now. */
static int64_t off(clockid_t clock) {
    if (!warp)
        return 0;
    int64_t seq, wall, since, extra, rate;
    do {
        seq = warp->seq;
        __sync_synchronize();
        wall = warp->wall, since = warp->since, extra = warp->extra, rate = warp->rate;
        __sync_synchronize();
    } while ((seq & 1) || seq != warp->seq);
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return wall;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
        return rate ? extra + (real(CLOCK_MONOTONIC) - since) / 1000 * (rate - 1000) : 0;
    default:
        return 0;
    }
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    long result = syscall(SYS_clock_gettime, clock, t);
    if (result == 0) {
        int64_t now = t->tv_sec * NANOS + t->tv_nsec + off(clock);
        t->tv_sec = now / NANOS, t->tv_nsec = now % NANOS;
    }
    return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        t->tv_sec = now.tv_sec, t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}

int fdatasync(int file) {
    static int64_t fails = -1, calls;
    if (fails < 0) {
        const char *k = getenv("PALISADE_LAB_FAIL_SYNC");
        fails = k ? atoll(k) : 0;
    }
    if (fails > 0 && __sync_add_and_fetch(&calls, 1) == fails) {
        const char *told = getenv("PALISADE_LAB_SYNC_FAILED");
        int marker = told ? open(told, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;
        if (marker >= 0)
            close(marker);
        errno = EIO;
        return -1;
    }
    return syscall(SYS_fdatasync, file);
}

#ifdef __x86_64__
static void redirect(unsigned char *from, void *to) {
    unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; /* mov rax, to; jmp rax */
    memcpy(jump + 2, &to, sizeof to);
    uintptr_t page = (uintptr_t)from & ~4095UL;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0 &&
        mprotect((void *)page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        _exit(97);
    memcpy(from, jump, sizeof jump);
}

static void redirect_vdso(void) {
    unsigned char *base = (unsigned char *)getauxval(AT_SYSINFO_EHDR);
    if (!base)
        return;
    Elf64_Ehdr *head = (Elf64_Ehdr *)base;
    Elf64_Phdr *segment = (Elf64_Phdr *)(base + head->e_phoff);
    Elf64_Dyn *dynamic = 0;
    for (int i = 0; i < head->e_phnum; i++)
        if (segment[i].p_type == PT_DYNAMIC)
            dynamic = (Elf64_Dyn *)(base + segment[i].p_offset);
    Elf64_Sym *symbols = 0;
    char *names = 0;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (Elf64_Sym *)(base + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB)
            names = (char *)(base + dynamic->d_un.d_ptr);
    }
    /* The string table follows the symbols: where it begins, they end. */
    for (Elf64_Sym *symbol = symbols; symbol && (char *)symbol < names; symbol++) {
        char *name = names + symbol->st_name;
        if (symbol->st_value == 0)
            continue;
        if (!strcmp(name, "__vdso_clock_gettime"))
            redirect(base + symbol->st_value, clock_gettime);
        if (!strcmp(name, "__vdso_gettimeofday"))
            redirect(base + symbol->st_value, gettimeofday);
        if (!strcmp(name, "__vdso_time"))
            redirect(base + symbol->st_value, time);
    }
}
#endif

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PALISADE_LAB_CLOCK");
    if (!path)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof *warp, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        _exit(98);
    close(file);
    warp = mapped;
#ifdef __x86_64__
    redirect_vdso();
#endif
}
