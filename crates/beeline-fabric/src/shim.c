/*
 * The C side of the edge to libfabric: its inline functions, its structures and its constants end here.
 *
 * Rules:
 *  1. Only flat structures of fixed layout cross the edge (repr(C) in ffi.rs). libfabric's own structures change
 *     with its version and are read here only, by the compiler that saw the headers of this machine.
 *  2. Nothing is decided here: a function is one call of libfabric, or one walk over one structure.
 *  3. Errors are libfabric's negative numbers, unchanged.
 *  4. Strings are copied into fields of fixed size and always end in NUL.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "shim.h"

#define API_VERSION FI_VERSION(1, 17)
#define READ_COUNT_MAX 64

/* ---- before anything else -------------------------------------------------------------------------------- */

/*
 * The registration cache of libfabric would keep a closed region registered, and so writable for the peer, and would
 * patch libc's functions to hear of unmapped memory. It is read once, when libfabric starts, and there is no call for
 * it: the environment is set before main(), while there is one thread.
 */
__attribute__((constructor)) static void no_registration_cache(void)
{
	setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
	setenv("FI_MR_CACHE_MONITOR", "disabled", 1);
	/* Memory registered with an adapter must not move when the bridge starts a program. */
	setenv("RDMAV_FORK_SAFE", "1", 0);
}

/* ---- small helpers --------------------------------------------------------------------------------------- */

static void copy_text(char *to, const char *from)
{
	snprintf(to, TEXT_BYTES, "%s", from ? from : "");
}

static uint32_t copy_address(struct sockaddr_storage *to, const void *from, size_t bytes)
{
	if (!from || bytes > sizeof(*to))
		return 0;
	memcpy(to, from, bytes);
	return (uint32_t)bytes;
}

static uint64_t flags_of(uint32_t flags)
{
	return FI_COMPLETION | (flags & BF_MORE ? FI_MORE : 0) | (flags & BF_FENCE ? FI_FENCE : 0) |
	       (flags & BF_DELIVERED ? FI_DELIVERY_COMPLETE : 0) | (flags & BF_INJECT ? FI_INJECT : 0);
}

void bf_error_text(int error, char *text, size_t bytes)
{
	snprintf(text, bytes, "%s", fi_strerror(error < 0 ? -error : error));
}

int bf_close(struct fid *fid)
{
	return fi_close(fid);
}

size_t bf_size_of_port(void)
{
	return sizeof(struct bf_port);
}

size_t bf_size_of_event(void)
{
	return sizeof(struct bf_event);
}

size_t bf_size_of_failure(void)
{
	return sizeof(struct bf_failure);
}

/* ---- discovery ------------------------------------------------------------------------------------------- */

int bf_getinfo(const char *provider, struct fi_info **out)
{
	struct fi_info *hints = fi_allocinfo();
	int ret = -FI_ENOMEM;

	if (!hints)
		return ret;
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_RX_CQ_DATA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	/* A message is received only when what was written before it has been placed. */
	hints->tx_attr->msg_order = FI_ORDER_SAW | FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAW | FI_ORDER_SAS;
	hints->fabric_attr->prov_name = strdup(provider); /* fi_freeinfo() frees it */
	if (hints->fabric_attr->prov_name)
		ret = fi_getinfo(API_VERSION, NULL, NULL, 0, hints, out);
	fi_freeinfo(hints);
	return ret;
}

int bf_set_address(struct fi_info *info, bool target, const void *address, size_t bytes)
{
	void **place = target ? &info->dest_addr : &info->src_addr;
	size_t *length = target ? &info->dest_addrlen : &info->src_addrlen;
	void *copy = malloc(bytes);

	if (!copy)
		return -FI_ENOMEM;
	memcpy(copy, address, bytes);
	free(*place); /* fi_freeinfo() would do the same */
	*place = copy;
	*length = bytes;
	return 0;
}

struct fi_info *bf_next(const struct fi_info *info)
{
	return info->next;
}

struct fi_info *bf_dup(const struct fi_info *info)
{
	return fi_dupinfo(info);
}

void bf_free(struct fi_info *info)
{
	fi_freeinfo(info);
}

void bf_describe(const struct fi_info *info, struct bf_port *port)
{
	memset(port, 0, sizeof(*port));
	port->address_bytes = copy_address(&port->address, info->src_addr, info->src_addrlen);
	port->max_msg_size = info->ep_attr->max_msg_size;
	port->inject_size = info->tx_attr->inject_size;
	port->tx_size = info->tx_attr->size;
	port->rx_size = info->rx_attr->size;
	port->endpoints_max = info->domain_attr->ep_cnt;
	port->iwarp = info->ep_attr->protocol == FI_PROTO_IWARP;
	port->mr_virt_addr = !!(info->domain_attr->mr_mode & FI_MR_VIRT_ADDR);
	port->mr_prov_key = !!(info->domain_attr->mr_mode & FI_MR_PROV_KEY);
	port->mr_local = !!(info->domain_attr->mr_mode & FI_MR_LOCAL);
	port->send_after_write = !!(info->tx_attr->msg_order & info->rx_attr->msg_order & FI_ORDER_SAW);
	copy_text(port->provider, info->fabric_attr->prov_name);
	copy_text(port->fabric, info->fabric_attr->name);
	copy_text(port->domain, info->domain_attr->name);
	if (!info->nic)
		return;
	if (info->nic->device_attr)
		copy_text(port->device, info->nic->device_attr->name);
	if (info->nic->link_attr) {
		port->link_speed = info->nic->link_attr->speed;
		port->link_state = info->nic->link_attr->state == FI_LINK_UP     ? 2
				   : info->nic->link_attr->state == FI_LINK_DOWN ? 1
										 : 0;
		copy_text(port->layer, info->nic->link_attr->network_type);
	}
	if (info->nic->bus_attr && info->nic->bus_attr->bus_type == FI_BUS_PCI) {
		port->pci_known = 1;
		port->pci_domain = info->nic->bus_attr->attr.pci.domain_id;
		port->pci_bus = info->nic->bus_attr->attr.pci.bus_id;
		port->pci_device = info->nic->bus_attr->attr.pci.device_id;
		port->pci_function = info->nic->bus_attr->attr.pci.function_id;
	}
}

/* ---- a rail ---------------------------------------------------------------------------------------------- */

int bf_fabric(struct fi_info *info, struct fid_fabric **fabric)
{
	return fi_fabric(info->fabric_attr, fabric, NULL);
}

int bf_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain)
{
	return fi_domain(fabric, info, domain, NULL);
}

int bf_eq(struct fid_fabric *fabric, struct fid_eq **eq, int *fd)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
	int ret = fi_eq_open(fabric, &attr, eq, NULL);

	if (ret)
		return ret;
	ret = fi_control(&(*eq)->fid, FI_GETWAIT, fd);
	if (ret)
		fi_close(&(*eq)->fid);
	return ret;
}

int bf_cq(struct fid_domain *domain, size_t entries, struct fid_cq **cq, int *fd)
{
	struct fi_cq_attr attr = {
		.size = entries, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD, .wait_cond = FI_CQ_COND_NONE
	};
	int ret = fi_cq_open(domain, &attr, cq, NULL);

	if (ret)
		return ret;
	ret = fi_control(&(*cq)->fid, FI_GETWAIT, fd);
	if (ret)
		fi_close(&(*cq)->fid);
	return ret;
}

int bf_trywait(struct fid_fabric *fabric, struct fid_eq *eq, struct fid_cq *cq)
{
	struct fid *fids[2] = { &cq->fid, eq ? &eq->fid : NULL };

	return fi_trywait(fabric, fids, eq ? 2 : 1);
}

/* ---- connecting ------------------------------------------------------------------------------------------ */

int bf_listen(struct fid_fabric *fabric, struct fi_info *info, struct fid_eq *eq, struct fid_pep **pep,
	      struct sockaddr_storage *address, uint32_t *address_bytes)
{
	size_t bytes = sizeof(*address);
	int ret = fi_passive_ep(fabric, info, pep, NULL);

	if (ret)
		return ret;
	ret = fi_pep_bind(*pep, &eq->fid, 0);
	if (!ret)
		ret = fi_listen(*pep);
	if (!ret)
		ret = fi_getname(&(*pep)->fid, address, &bytes);
	if (ret) {
		fi_close(&(*pep)->fid);
		return ret;
	}
	*address_bytes = (uint32_t)bytes;
	return 0;
}

int bf_reject(struct fid_pep *pep, struct fi_info *request, const void *data, size_t bytes)
{
	return fi_reject(pep, request->handle, data, bytes);
}

int bf_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_eq *eq, struct fid_cq *cq, size_t tx_size,
		size_t rx_size, struct fid_ep **ep)
{
	int ret;

	info->tx_attr->size = tx_size;
	info->rx_attr->size = rx_size;
	ret = fi_endpoint(domain, info, ep, NULL);
	if (ret)
		return ret;
	ret = fi_ep_bind(*ep, &eq->fid, 0);
	if (!ret)
		ret = fi_ep_bind(*ep, &cq->fid, FI_TRANSMIT | FI_RECV);
	if (!ret)
		ret = fi_enable(*ep);
	if (ret)
		fi_close(&(*ep)->fid);
	return ret;
}

size_t bf_data_max(struct fid *fid)
{
	size_t bytes = 0, length = sizeof(bytes);

	if (fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &bytes, &length))
		return 0;
	return bytes;
}

int bf_connect(struct fid_ep *ep, struct fi_info *info, const void *data, size_t bytes)
{
	return fi_connect(ep, info->dest_addr, data, bytes);
}

int bf_accept(struct fid_ep *ep, const void *data, size_t bytes)
{
	return fi_accept(ep, data, bytes);
}

int bf_shutdown(struct fid_ep *ep)
{
	return fi_shutdown(ep, 0);
}

static int read_event_error(struct fid_eq *eq, struct bf_event *event)
{
	struct fi_eq_err_entry error = { .err_data = event->data, .err_data_size = sizeof(event->data) };
	ssize_t ret = fi_eq_readerr(eq, &error, 0);

	if (ret < 0)
		return (int)ret;
	event->kind = BF_FAILED;
	event->fid = error.fid;
	event->error = error.err;
	event->provider_error = error.prov_errno;
	event->data_bytes = error.err_data_size <= sizeof(event->data) ? (uint32_t)error.err_data_size : 0;
	/* Not every provider copies into the caller's buffer. */
	if (event->data_bytes && error.err_data != event->data)
		memcpy(event->data, error.err_data, event->data_bytes);
	fi_eq_strerror(eq, error.prov_errno, error.err_data, event->text, sizeof(event->text));
	event->text[sizeof(event->text) - 1] = 0;
	return 1;
}

int bf_event(struct fid_eq *eq, struct bf_event *event)
{
	struct {
		struct fi_eq_cm_entry entry;
		uint8_t data[DATA_BYTES];
	} read;
	uint32_t kind = 0;
	ssize_t ret;

	memset(event, 0, sizeof(*event));
	memset(&read.entry, 0, sizeof(read.entry));
	ret = fi_eq_read(eq, &kind, &read, sizeof(read), 0);
	if (ret == -FI_EAGAIN)
		return 0;
	if (ret == -FI_EAVAIL)
		return read_event_error(eq, event);
	if (ret < 0)
		return (int)ret;
	event->fid = read.entry.fid;
	event->kind = kind == FI_CONNREQ     ? BF_REQUEST
		      : kind == FI_CONNECTED ? BF_CONNECTED
		      : kind == FI_SHUTDOWN  ? BF_SHUTDOWN
					     : BF_OTHER;
	if (kind == FI_CONNREQ) {
		event->info = read.entry.info;
		if (event->info)
			event->peer_bytes =
				copy_address(&event->peer, event->info->dest_addr, event->info->dest_addrlen);
	}
	if ((kind == FI_CONNREQ || kind == FI_CONNECTED) && (size_t)ret > sizeof(read.entry)) {
		event->data_bytes = (uint32_t)((size_t)ret - sizeof(read.entry));
		memcpy(event->data, read.data, event->data_bytes);
	}
	return 1;
}

/* ---- data ------------------------------------------------------------------------------------------------ */

int bf_completions(struct fid_cq *cq, struct bf_completion *out, size_t count)
{
	struct fi_cq_msg_entry entries[READ_COUNT_MAX];
	ssize_t ret = fi_cq_read(cq, entries, count < READ_COUNT_MAX ? count : READ_COUNT_MAX);

	if (ret == -FI_EAGAIN)
		return 0;
	for (ssize_t i = 0; i < ret; i++)
		out[i] = (struct bf_completion){ (uint64_t)(uintptr_t)entries[i].op_context, entries[i].len };
	return (int)ret;
}

int bf_failure(struct fid_cq *cq, struct bf_failure *failure)
{
	struct fi_cq_err_entry error = { 0 };
	ssize_t ret = fi_cq_readerr(cq, &error, 0);

	memset(failure, 0, sizeof(*failure));
	if (ret < 0)
		return ret == -FI_EAGAIN ? 0 : (int)ret;
	failure->context = (uint64_t)(uintptr_t)error.op_context;
	failure->error = error.err;
	failure->provider_error = error.prov_errno;
	fi_cq_strerror(cq, error.prov_errno, error.err_data, failure->text, sizeof(failure->text));
	failure->text[sizeof(failure->text) - 1] = 0;
	return 1;
}

int bf_register(struct fid_domain *domain, void *base, size_t bytes, uint32_t access, uint64_t key,
		struct fid_mr **mr, uint64_t *key_out, void **descriptor)
{
	uint64_t rights = (access & BF_LOCAL_SOURCE ? FI_WRITE : 0) | (access & BF_LOCAL_TARGET ? FI_READ : 0) |
			  (access & BF_REMOTE_READ ? FI_REMOTE_READ : 0) |
			  (access & BF_REMOTE_WRITE ? FI_REMOTE_WRITE : 0) |
			  (access & BF_MESSAGES ? FI_SEND | FI_RECV : 0);
	int ret = fi_mr_reg(domain, base, bytes, rights, 0, key, 0, mr, NULL);

	if (ret)
		return ret;
	*key_out = fi_mr_key(*mr);
	*descriptor = fi_mr_desc(*mr);
	return 0;
}

int bf_recv(struct fid_ep *ep, void *base, size_t bytes, void *descriptor, uint64_t context)
{
	return (int)fi_recv(ep, base, bytes, descriptor, 0, (void *)(uintptr_t)context);
}

int bf_send(struct fid_ep *ep, const void *base, size_t bytes, void *descriptor, uint64_t context, uint32_t flags)
{
	struct iovec piece = { (void *)base, bytes };
	/* Where an array of descriptors is given, the verbs provider follows each. */
	struct fi_msg message = { .msg_iov = &piece,
				  .desc = descriptor ? &descriptor : NULL,
				  .iov_count = 1,
				  .context = (void *)(uintptr_t)context };

	return (int)fi_sendmsg(ep, &message, flags_of(flags));
}

static struct fi_msg_rma rma(const struct iovec *piece, void **descriptor, const struct fi_rma_iov *remote,
			     uint64_t context)
{
	return (struct fi_msg_rma){ .msg_iov = piece,
				    .desc = *descriptor ? descriptor : NULL,
				    .iov_count = 1,
				    .rma_iov = remote,
				    .rma_iov_count = 1,
				    .context = (void *)(uintptr_t)context };
}

int bf_write(struct fid_ep *ep, const void *base, size_t bytes, void *descriptor, uint64_t remote, uint64_t key,
	     uint64_t context, uint32_t flags)
{
	struct iovec piece = { (void *)base, bytes };
	struct fi_rma_iov target = { remote, bytes, key };
	struct fi_msg_rma message = rma(&piece, &descriptor, &target, context);

	return (int)fi_writemsg(ep, &message, flags_of(flags));
}

int bf_read(struct fid_ep *ep, void *base, size_t bytes, void *descriptor, uint64_t remote, uint64_t key,
	    uint64_t context, uint32_t flags)
{
	struct iovec piece = { base, bytes };
	struct fi_rma_iov source = { remote, bytes, key };
	struct fi_msg_rma message = rma(&piece, &descriptor, &source, context);

	return (int)fi_readmsg(ep, &message, flags_of(flags));
}
