{{/* The operator's rights on what it watches and makes: in each watched namespace, or in the whole cluster. */}}
{{- define "magnetar.rules" -}}
- apiGroups: [magnetar.io]
  resources: [brokerclusters, transactioncoordinators, topicnamespaces, datajobs]
  verbs: [get, list, watch]
- apiGroups: [magnetar.io]
  resources: [brokerclusters/status, transactioncoordinators/status, topicnamespaces/status, datajobs/status]
  verbs: [patch]
# The autoscaler's one write: the number of brokers, and no other field of the spec.
- apiGroups: [magnetar.io]
  resources: [brokerclusters/scale]
  verbs: [patch]
# A finalizer on TopicNamespaces whose deletion deletes something.
- apiGroups: [magnetar.io]
  resources: [topicnamespaces]
  verbs: [patch]
# Owner references that block deletion need this where that admission is on.
- apiGroups: [magnetar.io]
  resources: [brokerclusters/finalizers, transactioncoordinators/finalizers, datajobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# No deletion: claims hold the messages.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
# Drivers and executors of jobs are created; brokers and coordinators are deleted to restart them.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete]
# The managed etcd's certificates, the keys of clusters and jobs, and the secrets that specs refer to: always by name. They cannot be listed or watched,
# so that the operator learns of no other; they go with their owner, and the authority's stays, so none is deleted.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
