/* What the system's files say of clocks, temperatures and power: sysfs, procfs and, on Jetson, nvpmodel's. No program is run
 * and no library asked; what cannot be read is left out.
 */
#ifndef STATE_H
#define STATE_H

#include <jansson.h>

/* root: put before every path, "" but in tests. The caller owns the objects; NULL when there is no memory. */

/* What stays: driver, l4t, board. */
json_t *state_identity(const char *root);
/* What moves: cpu_mhz, cpu_max_mhz, governor, temperature_c {zone}, power_mode, gpu_mhz, gpu_max_mhz, emc_mhz, emc_max_mhz,
 * rails_mw {rail}. */
json_t *state_now(const char *root);

#endif
